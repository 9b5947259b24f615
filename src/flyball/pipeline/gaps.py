"""Long intervals without requests, which indicate that a node was stopped or that a clock jumped."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np
import pandas as pd

from flyball.pipeline.intervals import Numbers

# A time without requests is reported if it exceeds this share of a run and this many seconds.
MOST_RATIO = 0.5
FEWEST_S = 3600.0


def gaps(series: pd.DataFrame, windows: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence for each run whose rates are means over a time most of which has no records.

    `series` is SERIES with `point_s`.
    """
    for run, from_us, until_us in zip(windows["run"], windows["from_us"], windows["until_us"], strict=True):
        own = series[series["run"] == run]
        length_s = (until_us - from_us) / 1e6
        if own.empty:
            continue
        begins: Numbers = np.unique(own["second"].to_numpy(dtype=float))
        ends = begins + float(own["point_s"].iloc[0])
        silent_s = np.append(begins[1:], length_s) - ends
        longest = int(silent_s.argmax())
        if silent_s[longest] > max(FEWEST_S, MOST_RATIO * length_s):
            first, last = (
                datetime.fromtimestamp(from_us / 1e6 + second, UTC).strftime("%Y-%m-%d %H:%M")
                for second in (ends[longest], ends[longest] + silent_s[longest])
            )
            name = f" of run {run}" if run else ""
            yield (
                f"holds no request{name} from {first} to {last} UTC, {silent_s[longest] / length_s:.0%} of the time"
                " over which rates are means: nothing ran, or a clock jumped"
            )
