"""Predict step times on a cluster from measured costs, for any mix of collectives."""

from tersor.planning.advice import Advice, Turn, advise, agreement_words, turns
from tersor.planning.cluster import Cluster, read_cluster_file
from tersor.planning.collectives import Collective, Pattern, Scope, Traffic
from tersor.planning.curves import Line, RatioCurve
from tersor.planning.model import BASELINE, Prediction, Step, StepModel
from tersor.planning.transfers import (
    UNCODED,
    CodecCosts,
    Phases,
    Transfer,
    Transport,
    hierarchical,
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
    "UNCODED",
    "Advice",
    "Cluster",
    "CodecCosts",
    "Collective",
    "Line",
    "Pattern",
    "Phases",
    "Prediction",
    "RatioCurve",
    "Scope",
    "Step",
    "StepModel",
    "Traffic",
    "Transfer",
    "Transport",
    "Turn",
    "advise",
    "agreement_words",
    "bandwidth_words",
    "hierarchical",
    "parse_bandwidth",
    "parse_ranks",
    "parse_seconds",
    "parse_sweep",
    "read_cluster_file",
    "turns",
]
