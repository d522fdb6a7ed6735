"""python -m draft_worker --config FILE"""

from __future__ import annotations

import asyncio

import torch

from draft_worker.drafter import MAX_PROPOSAL, CausalDrafter, Drafter, Drafters, Head
from draft_worker.lookup import LookupDrafter
from tandem.config import PROMPT_LOOKUP, Config, cache_folder
from tandem.core.blocks import BlockPool
from tandem.core.plan import StepPlan
from tandem.core.sessions import SessionTable
from tandem.core.types import Description
from tandem.model.engine import Engine
from tandem.model.loading import describe, open_model
from tandem.model.resolve import resolve
from tandem.model.tokenizer import load_tokenizer, pieces, vocabulary_hash
from tandem.rpc.serving import Server, service_main
from tandem.rpc.worker_host import Loaded, serve_worker
from tandem.rpc.worker_service import DraftServicer, Streams
from tandem.v1 import draft_pb2_grpc

_LOOKUP_TOKENS = 1 << 22  # token ids a worker without a model keeps; no KV behind them
_NO_LIMIT = (1 << 31) - 1


async def serve(config: Config, stopped: asyncio.Event) -> None:
    """Runs a draft worker until `stopped`."""
    await serve_worker(config, config.draft, "draft", lambda: load(config), _add_servicer, stopped)


def load(config: Config) -> Loaded:
    """Loads the draft model, if there is one, and builds the engine. Raises ModelError."""
    return _load_lookup(config) if config.model.draft == PROMPT_LOOKUP else _load_model(config)


def _load_model(config: Config) -> Loaded:
    ready = open_model(config.model.draft, config.model, config.draft)
    model = ready.model
    causal = CausalDrafter(ready.num_embeddings, model.context_length, Head(model.num_pieces, model.row_ids))
    drafters = Drafters([causal, LookupDrafter()])
    engine = Engine(ready.runner, ready.table, drafters.open_job, config.draft.max_step_tokens)
    return Loaded(engine, describe(ready, MAX_PROPOSAL, drafters.names), ready.pieces)


class _NoModel:
    """Stands where a model would; prompt lookup never runs one."""

    def forward(self, plan: StepPlan) -> torch.Tensor:
        raise RuntimeError("prompt lookup has no model")


def _load_lookup(config: Config) -> Loaded:
    vocabulary = pieces(load_tokenizer(resolve(config.model.target, cache_folder())))
    drafters: list[Drafter] = [LookupDrafter()]
    pool = BlockPool(_LOOKUP_TOKENS // config.draft.block_size, config.draft.block_size)
    engine = Engine(
        _NoModel(),
        SessionTable(pool, config.draft.lease_s),
        Drafters(drafters).open_job,
        config.draft.max_step_tokens,
    )
    return Loaded(engine, _describe_lookup(vocabulary, pool), vocabulary)


def _describe_lookup(vocabulary: list[str], pool: BlockPool) -> Description:
    return Description(
        model=PROMPT_LOOKUP,
        fingerprint=PROMPT_LOOKUP,
        context_length=_NO_LIMIT,
        end_token_ids=frozenset(),
        head_width=len(vocabulary),
        num_pieces=len(vocabulary),
        vocabulary_hash=vocabulary_hash(vocabulary),
        kv_budget_tokens=pool.num_blocks * pool.block_size,
        max_block=MAX_PROPOSAL,
        incarnation="",
        drafters=(PROMPT_LOOKUP,),
    )


def _add_servicer(streams: Streams, server: Server) -> None:
    draft_pb2_grpc.add_DraftServicer_to_server(DraftServicer(streams), server.grpc)


if __name__ == "__main__":
    service_main(serve)
