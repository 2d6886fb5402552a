"""Linear blocks on trial: sets that read them are tried by products between nodes, before the features are computed.

If the sums of all sets would exceed their share of the budget, the first task drops sets (`_worth_keeping`). Blocks of
thousands of words are seldom kept, and their nodes × words matrices would take most of a first task's memory and much
of its time. While there are fewer nodes than features, the hits of a head follow from products between nodes
(`factored`), which for linear blocks cost next to nothing (`linear_products`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from evergraph.core import large
from evergraph.core.capabilities import capable
from evergraph.core.symmetric import SymmetricSum, diagonal, entries_at, packed_size, panels
from evergraph.data.tasks import Task
from evergraph.methods.base import Context
from evergraph.methods.closed_form.blended import Blended
from evergraph.methods.closed_form.block_sets import head_sets, own_sets
from evergraph.methods.closed_form.budgeted import AT_FIRST
from evergraph.methods.closed_form.factored import FactoredSums
from evergraph.methods.closed_form.head import linear_head
from evergraph.methods.closed_form.hits import changes_between, rows_of
from evergraph.methods.closed_form.ridges import Explained, explained_share, tops
from evergraph.methods.closed_form.sums import RidgeSystem, met, solved
from evergraph.methods.closed_form.two_forms import PARTS, TRAIN_ONLY
from evergraph.models.base import GraphModel
from evergraph.models.feature_blocks import Layout
from evergraph.models.linear_products import Products

Sets = dict[str, list[bool]]
"""Sets of blocks by name: whether each block is read."""


class TrialSet:
    """The heads of one set of blocks, some of them on trial, solved from the training nodes.

    Args:
        sums: the factors, over the present blocks; their rows are nodes of the current task alone.
        rows: the features of present blocks that the set reads.
        on_trial: products between nodes in the blocks on trial that it reads.
    """

    def __init__(self, sums: FactoredSums, rows: Tensor, on_trial: Sequence[Products]) -> None:
        train, val = (sums.factors[part] for part in PARTS)
        root = torch.cat([train.targets.sum(1), val.targets.sum(1)])  # square root of each node's weight
        number, total = train.rows.size(0), root.numel()
        products = large.zeros((packed_size(total),), root.dtype, root.device)
        squares = [sums.squares(TRAIN_ONLY, rows)]
        for block in on_trial:
            products += block.between
            length = float((diagonal(block.between)[:number] * root[:number].square()).sum())
            squares.append(torch.full((block.words,), length / max(block.words, 1), dtype=torch.float64))
        for panel in panels(products):
            panel.entries.mul_(root[panel.start : panel.stop].unsqueeze(1)).mul_(root[: panel.stop])
        for number_of_block in sums.blocks(rows):
            products += sums.products(number_of_block)
        self._targets = val.targets.double()
        self._seen = entries_at(products, slice(number, total), slice(0, number))
        matrix = SymmetricSum([products], torch.arange(number))
        targets = train.targets.double()
        self.system = RidgeSystem.of(
            matrix, targets, torch.cat([one.to(targets.device) for one in squares]), met(targets)
        )

    def hits(self, combined: Tensor) -> Tensor:
        """Return a mask of the validation nodes that the head hits which is this combination of training nodes."""
        return self._scores(combined).argmax(1) == self._targets.argmax(1)

    def explained(self, combined: Tensor) -> float:
        """Return the share of the validation nodes' variance that the head explains."""
        error = float((self._scores(combined).double() - self._targets).square().sum())
        return explained_share(error, self._targets.square().sum(0))

    def _scores(self, combined: Tensor) -> Tensor:
        """Return the scores of the validation nodes, each times the root of the node's weight."""
        return self._seen @ combined.to(self._seen.dtype)


@dataclass(repr=False)
class OnTrial(Blended):
    """`Blended` that tries sets with linear blocks before computing these blocks.

    A subclass defines the sets.
    """

    _trial: ClassVar[Layout | None] = None  # set per instance during the first task: the layout with blocks on trial

    def adapt_model(self, model: GraphModel, task: Task) -> None:
        """Put linear blocks on trial if they are unlikely to be kept."""
        super().adapt_model(model, task)
        self.__dict__.pop("_trial", None)
        if self._can_be_tried(model, task):
            layout: Layout = capable(model, "feature_layout")()  # type: ignore[misc]
            self._narrow(model, [not block.linear for block in layout.present], layout.linear_width)
            self.__dict__["_trial"] = layout

    def _can_be_tried(self, model: GraphModel, task: Task) -> bool:
        """Return whether to put linear blocks on trial: at the first task, if sums with them exceed their share.

        All blocks have to be present, the linear ones exact, and products between nodes have to fit.
        """
        if self.tasks_ or self.gram_ or self.factor_ or capable(model, "linear_products") is None:
            return False
        layout: Layout = capable(model, "feature_layout")()  # type: ignore[misc]
        linear, nodes = (
            [block.linear for block in layout.present],
            {part: getattr(task, part).numel() for part in PARTS},
        )
        exact = layout.linear_width >= task.graph.num_features  # few features have one more column, a constant
        if not all(layout.kept) or all(linear) or not any(linear) or not exact or task.graph.rows is not None:
            return False
        width = 1 + sum(width for width, words in zip(layout.widths, linear) if not words)
        size, share = linear_head(model)[1].element_size(), AT_FIRST * self.budget()
        fits = size * task.graph.num_nodes**2 <= share and nodes["val"] > 0
        return fits and not self._dense(width, nodes["train"]) and self._bytes(layout.width, nodes, size) > share

    def _settled(self, context: Context, validated: int) -> tuple[Sets, Sets] | None:
        """Return the sets that are kept after the trial; None if they read blocks on trial, which are now present."""
        trial, now = self.__dict__.pop("_trial"), capable(context.model, "feature_layout")()  # type: ignore[misc]
        self._try(context, trial, now)
        kept = self._worth_keeping(trial, head_sets(trial.blocks), own_sets(trial.blocks), validated)
        if any(not now.has(blocks) for sets in kept for blocks in sets.values()):
            self._admit(context, trial)
            return None
        return now.sets_among_present(kept[0]), now.sets_among_present(kept[1])

    def _try(self, context: Context, trial: Layout, now: Layout) -> None:
        """Count the validation hits of the sets that read blocks on trial."""
        sums, (_, block_of_row) = self._factored(), capable(context.model, "feature_blocks")()  # type: ignore[misc]
        nodes = [getattr(context.task, part).to(context.device) for part in PARTS]
        products_of = capable(context.model, "linear_products")
        assert products_of is not None
        products: dict[int, Products] = products_of(context.task.graph, torch.cat(nodes), nodes[0])
        tried = {
            name: TrialSet(
                sums,
                rows_of(block_of_row, now.among_present(blocks)),
                [products[place] for place, read in enumerate(blocks) if read and place in products],
            )
            for name, blocks in {**own_sets(trial.blocks), **head_sets(trial.blocks)}.items()
            if not now.has(blocks)
        }
        heads = dict[tuple[str, int], Tensor]()

        def explained(wanted: Mapping[str, Sequence[int]]) -> Explained:
            asked = [(name, place) for name, places in wanted.items() for place in places]
            found = solved([(tried[name].system, self._ridges[place], True) for name, place in asked], self._error())
            heads.update({each: one.found for each, one in zip(asked, found)})
            return {name: {p: tried[name].explained(heads[name, p]) for p in places} for name, places in wanted.items()}

        self.ridge_places_ = {**self.ridge_places_, **tops(dict.fromkeys(tried), len(self._ridges), explained)}
        for name, one in tried.items():
            hits = [one.hits(heads[name, place]) for place in self._compared(name)]
            self._count(name, int(hits[0].sum()), changes_between(hits[0], hits[-1]), hits[0].numel())

    def _admit(self, context: Context, trial: Layout) -> None:
        """Add the blocks that were on trial to the model, and compute the task's sums again with them."""
        model, graph, batcher = context.model, context.task.graph, context.batcher
        capable(model, "lay_out")(trial.kept, trial.linear_width, trial.block_width)  # type: ignore[misc]
        self.block_widths_, self.blocks_, self.set_hits_, self.smaller_ = list(trial.widths), [], {}, {}
        self.factor_, self.factor_targets_, self.cross_, self.fresh_ = {}, {}, {}, {}
        graph.cache.clear()
        context.batcher = context.problem.batcher(
            model, graph, targets=batcher.y, fan_out=batcher.fan_out, device=context.device
        )
        self.add_to_sums(context, torch.tensor(self.class_sizes_, device=context.device))

    # defined by subclasses

    def _worth_keeping(self, layout: Layout, for_head: Sets, for_own: Sets, validated: int) -> tuple[Sets, Sets]:
        """Return the sets to keep: one for the head, and one for own features."""
        raise NotImplementedError
