"""One line on stderr that says how far a long run is and when it will be done."""

from __future__ import annotations

import sys
import time


class Progress:
    """A bar over weighted steps; the estimate follows the weight done in this run."""

    def __init__(self, total: float, done: float = 0.0, width: int = 30) -> None:
        self._total, self._done, self._skipped = max(total, 1e-9), done, done
        self._width, self._begun, self._shown = width, time.monotonic(), 0.0

    def step(self, weight: float, label: str) -> None:
        """Count one step and redraw; at most once a second where the output is no terminal."""
        self._done += weight
        now, finished = time.monotonic(), self._done >= self._total * (1 - 1e-9)
        if now - self._shown < (0.1 if sys.stderr.isatty() else 20.0) and not finished:
            return
        self._shown = now
        share = min(1.0, self._done / self._total)
        spent = now - self._begun
        left = spent / max(self._done - self._skipped, 1e-9) * (self._total - self._done)
        filled = int(share * self._width)
        bar = "#" * filled + "." * (self._width - filled)
        line = f"[{bar}] {share:4.0%}  {_clock(spent)} spent, {_clock(max(0.0, left))} left  {label}"
        sys.stderr.write(f"\r\x1b[2K{line}" if sys.stderr.isatty() else f"{line}\n")
        if finished:
            sys.stderr.write("\n")
        sys.stderr.flush()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"
