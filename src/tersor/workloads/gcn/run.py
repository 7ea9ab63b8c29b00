"""A training run of a graph network: model, optimizer and training step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from tersor.errors import SpecError
from tersor.workloads.classification import ClassMetrics, class_sums
from tersor.workloads.data.graphs import Graph, Indices
from tersor.workloads.data.neighbours import drawn_hops, step_nodes
from tersor.workloads.gcn.config import GcnConfig
from tersor.workloads.models.gcn import GraphNet, Propagation, whole_propagation
from tersor.workloads.training.run import TrainingRun


@dataclass(frozen=True, slots=True)
class GraphBatch:
    """The inputs of a step.

    Attributes:
        features: float32 [nodes, features], inputs of the first layer.
        hops: a matrix for each layer.
        chosen: int64, the outputs of the last layer that enter the loss.
        labels: int64, their classes.
    """

    features: torch.Tensor
    hops: Sequence[Propagation]
    chosen: torch.Tensor
    labels: torch.Tensor


class GcnRun(TrainingRun[GraphBatch, ClassMetrics]):
    """Model and optimizer, on one rank.

    Without ``fanouts`` every step computes the whole graph, and its loss covers all training nodes. With
    them a step computes its own nodes from sampled neighbours, which depend only on seed and step number.
    """

    config: GcnConfig
    model: GraphNet

    def __init__(self, config: GcnConfig, graph: Graph, device: torch.device | str = "cpu") -> None:
        """Create the model.

        Raises:
            SpecError: there are several ranks, the graph is not trainable, or the batch does not fit it.
        """
        super().__init__(config, graph.name, device)
        graph.check_trainable()
        if self.ranks.world_size > 1:
            raise SpecError("a graph network trains on one rank; start it without torchrun")
        num_train = len(graph.train)
        if config.batch > num_train or (not config.fanouts and config.batch != num_train):
            raise SpecError(
                f"{graph.name} has {num_train} nodes to train on, which is the batch of a whole graph and "
                f"the most of any, not {config.batch}"
            )
        self.graph = graph
        self._features = torch.from_numpy(graph.features).to(self.device)
        self._labels = torch.from_numpy(graph.labels).to(self.device)
        # evaluation of sampled training uses all neighbours, for which only a sparse matrix surely fits
        form = "csr" if config.fanouts else config.form
        self._whole = whole_propagation(graph, config.model, form).on(self.device)
        torch.manual_seed(config.seed)
        widths = (graph.features.shape[1], *config.hidden, graph.num_classes)
        self.model = GraphNet(config.model, widths, config.dropout).to(self.device)
        self.optimizer = self._made_optimizer()
        # all nodes of a step depend on each other
        self.compress_activations(config.activations, self.loss, lambda batch: batch)

    def _made_optimizer(self) -> torch.optim.Optimizer:
        """Return Adam as published, with weight decay on the first layer only."""
        first = [*self.model.neighbours[0].parameters(), *self.model.own[:1].parameters()]
        others = [p for p in self.model.parameters() if all(p is not q for q in first)]
        groups = [
            {"params": first, "weight_decay": self.config.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        return torch.optim.Adam(groups, lr=self.config.learning_rate)

    def batch(self, step: int) -> GraphBatch:
        """Return the inputs of a step."""
        if not self.config.fanouts:
            return self._whole_batch(self.graph.train)
        nodes = step_nodes(self.graph.train, self.config.seed, step, self.config.batch)
        drawn = drawn_hops(self.graph, nodes, self.config.fanouts, self.config.seed, step)
        hops = [
            Propagation(hop.indptr, hop.columns, hop.weights, len(hop.nodes), self.config.form).on(
                self.device
            )
            for hop in drawn
        ]
        features = self._features[torch.from_numpy(drawn[0].nodes).to(self.device)]
        asked = torch.from_numpy(nodes).to(self.device)
        return GraphBatch(
            features, hops, torch.arange(len(nodes), device=self.device), self._labels[asked]
        )

    def _whole_batch(self, nodes: Indices) -> GraphBatch:
        chosen = torch.from_numpy(nodes).to(self.device)
        hops = [self._whole] * (len(self.config.hidden) + 1)
        return GraphBatch(self._features, hops, chosen, self._labels[chosen])

    def take_step(self, batch: GraphBatch) -> float:
        """Compute gradients and update the weights; return the mean loss of the step's nodes."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(batch)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def loss(self, batch: GraphBatch) -> torch.Tensor:
        """Return the mean loss of a step's nodes, attached to the autograd graph."""
        with self.saving():
            logits = self.model(batch.features, batch.hops)
        return functional.cross_entropy(logits[batch.chosen], batch.labels)

    def evaluate(self, max_samples: int | None = None) -> ClassMetrics:
        """Evaluate the model on the test nodes, using all neighbours."""
        nodes = self.graph.test[:max_samples]
        if not len(nodes) or (max_samples is not None and max_samples < 1):
            raise SpecError(f"an evaluation needs at least one node, not {max_samples}")
        batch = self._whole_batch(nodes)
        self.model.eval()
        with torch.no_grad():
            logits = self.model(batch.features, batch.hops)
        self.model.train()
        return ClassMetrics.of(class_sums(logits[batch.chosen], batch.labels))
