"""CPU load as by another tenant: `python -m flyball.lab.noise` keeps one core busy until its standard input ends."""

from __future__ import annotations

import os
import sys
import threading


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    """Compute forever."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    print('{"event": "ready"}', flush=True)
    number = 1
    while True:
        number = (number * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64


if __name__ == "__main__":
    main()
