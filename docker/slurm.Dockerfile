# One image for the login node (controller, SSH) and the compute nodes of a small Slurm cluster with pretended GPUs.
FROM debian:12.11-slim
# Debian's Slurm 22.05, whose packages are not installed in other versions side by side
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
      slurmctld slurmd slurm-client munge openssh-server python3 procps \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* /etc/munge/munge.key \
    && useradd --uid 2000 --create-home --shell /bin/bash --password '*' fleet \
    && mkdir -p /run/sshd /run/munge /var/spool/slurmd \
    && chown munge: /run/munge
COPY docker/slurm/slurm.conf docker/slurm/gres.conf /etc/slurm/
COPY docker/slurm/sshd_config /etc/ssh/sshd_config
COPY docker/slurm/entrypoint /usr/local/bin/entrypoint
# Stand-ins for vLLM and aiperf with a known capacity: a whole campaign runs without a GPU. Replace them by the real ones
COPY tests/serving/fake_engine.py /opt/stand-in/fake_engine.py
COPY --chmod=755 docker/slurm/stand-in /opt/stand-in/vllm
COPY --chmod=755 docker/slurm/stand-in /opt/stand-in/aiperf
ENTRYPOINT ["entrypoint"]
