"""Fisher information as pure functions: products, diagonals, Kronecker factors, and the full matrix."""

from evergraph.curvature.forward import forward, outputs_at
from evergraph.curvature.framework import regularizer
from evergraph.curvature.guard import in_mode, measuring, require_deterministic
from evergraph.curvature.kronecker import KroneckerFactor, kronecker_factors
from evergraph.curvature.labels import LABELS, Labels, apply_output_fisher, label_factors, pick_labels
from evergraph.curvature.per_example import (
    fisher_diagonal,
    random_sign_diagonal,
    squared_batch_gradients,
    squared_gradient,
    sum_of_powers,
)
from evergraph.curvature.products import (
    dense_fisher,
    double_reverse_product,
    fisher_product,
    forward_product,
    jacobian,
    pull_back,
    quadratic_form,
)

__all__ = [
    "LABELS",
    "KroneckerFactor",
    "Labels",
    "apply_output_fisher",
    "dense_fisher",
    "double_reverse_product",
    "fisher_diagonal",
    "fisher_product",
    "forward",
    "forward_product",
    "in_mode",
    "jacobian",
    "kronecker_factors",
    "label_factors",
    "measuring",
    "outputs_at",
    "pick_labels",
    "pull_back",
    "quadratic_form",
    "random_sign_diagonal",
    "regularizer",
    "require_deterministic",
    "squared_batch_gradients",
    "squared_gradient",
    "sum_of_powers",
]
