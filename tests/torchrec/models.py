"""Small TorchRec models, sharded among the ranks that call these functions.

torchrec warns while it is imported, and pytest makes errors of warnings: only ranks import this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import (
    column_wise,
    construct_module_sharding_plan,
    row_wise,
    table_row_wise,
    table_wise,
)
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tersor.sites.embeddings.torchrec import TorchRecCodecs, torchrec_codecs
from tests.torchrec.tables import Samples, Table

CPU = torch.device("cpu")


@dataclass
class Sharded:
    """A model of tables only, and its codecs."""

    model: Any
    codecs: TorchRecCodecs | None


def configs_of(tables: Sequence[Table], is_pooled: bool = True) -> list[Any]:
    kind: Any = EmbeddingBagConfig if is_pooled else EmbeddingConfig
    return [
        kind(
            name=table.name,
            embedding_dim=table.width,
            num_embeddings=table.num_rows,
            feature_names=list(table.features),
        )
        for table in tables
    ]


def collection(tables: Sequence[Table], is_pooled: bool = True) -> Any:
    """Return an unsharded collection with the same weights on every rank."""
    kind: Any = EmbeddingBagCollection if is_pooled else EmbeddingCollection
    torch.manual_seed(0)
    return kind(tables=configs_of(tables, is_pooled), device=CPU)


def placement(table: Table, kernel: str) -> Any:
    if table.owners == ():
        return row_wise(compute_kernel=kernel)
    if table.owners == (0, 0):
        return table_row_wise(host_index=0)
    if len(table.owners) == 1:
        return table_wise(rank=table.owners[0], compute_kernel=kernel)
    return column_wise(ranks=list(table.owners), compute_kernel=kernel)


def shard(
    module: torch.nn.Module,
    path: str,
    tables: Sequence[Table],
    codecs: TorchRecCodecs | None,
    learning_rate: float | None = None,
) -> Any:
    """Shard the collection at ``path`` of a module as its tables say.

    With a learning rate, tables take a step of SGD in backward; without, they have gradients.
    """
    kernel = "dense" if learning_rate is None else "fused"
    fused = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": learning_rate}
    inner = module.get_submodule(path)
    is_pooled = isinstance(inner, EmbeddingBagCollection)
    kind: Any = EmbeddingBagCollectionSharder if is_pooled else EmbeddingCollectionSharder
    sharder = kind(qcomm_codecs_registry=codecs, fused_params=fused if learning_rate else None)
    plan = construct_module_sharding_plan(
        inner,
        {table.name: placement(table, kernel) for table in tables},
        sharder=sharder,
        local_size=dist.get_world_size(),
        world_size=dist.get_world_size(),
        device_type="cpu",
    )
    return DistributedModelParallel(
        module,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        device=CPU,
        plan=ShardingPlan({path: plan}),
        sharders=[sharder],
    )


def make(
    tables: Sequence[Table], options: dict[str, Any] | None, is_pooled: bool = True
) -> Sharded:
    """Return a sharded model of tables only; without codecs if ``options`` is None."""
    codecs = None if options is None else torchrec_codecs(configs_of(tables, is_pooled), **options)
    module = torch.nn.Sequential(collection(tables, is_pooled))
    # the kernel of fbgemm 1.8 for gradients of sequences writes past its memory on a CPU
    sharded = Sharded(shard(module, "0", tables, codecs, None if is_pooled else 1.0), codecs)
    if codecs is not None:
        codecs.attach(sharded.model)
    return sharded


def as_features(samples: Samples) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(
        keys=list(samples.keys), values=samples.values, lengths=samples.lengths
    )
