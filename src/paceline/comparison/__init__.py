"""Which mode should I use? One model under several modes, in virtual time.

experiment   what is trained: a model, data, and how good a model is
modes        paces and update rules under names
running      one mode: curves, staleness, idle time, a timeline
comparing    several modes, with runs that are kept, and the result as a dict
advice       the recommendation in plain words
rehearsing   timing alone, for sizing
tables, page the result for a terminal, as JSON and CSV, and as one HTML page
"""

from __future__ import annotations

from paceline.comparison.comparing import compare
from paceline.comparison.experiment import Experiment, digits
from paceline.comparison.modes import Mode, default_modes
from paceline.comparison.rehearsing import Rehearsed, rehearse

__all__ = ["Experiment", "Mode", "Rehearsed", "compare", "default_modes", "digits", "rehearse"]
