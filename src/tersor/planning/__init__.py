"""Predicted times of exchanges and steps on a cluster, from measured costs; no cluster needed."""

from tersor.planning.advice import Advice, Turn, advise, agreement_words, turns
from tersor.planning.cluster import Cluster, Description, Workload, read_cluster_file
from tersor.planning.curves import Line, RatioCurve
from tersor.planning.model import (
    BASELINE,
    Model,
    OneWay,
    Phases,
    Prediction,
    Profile,
    Transport,
)
from tersor.planning.units import (
    bandwidth_words,
    parse_bandwidth,
    parse_ranks,
    parse_seconds,
    parse_sweep,
)

__all__ = [
    "BASELINE",
    "Advice",
    "Cluster",
    "Description",
    "Line",
    "Model",
    "OneWay",
    "Phases",
    "Prediction",
    "Profile",
    "RatioCurve",
    "Transport",
    "Turn",
    "Workload",
    "advise",
    "agreement_words",
    "bandwidth_words",
    "parse_bandwidth",
    "parse_ranks",
    "parse_seconds",
    "parse_sweep",
    "read_cluster_file",
    "turns",
]
