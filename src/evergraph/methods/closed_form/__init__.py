"""Closed-form learners: heads solved from sums over features, and prediction that judges a graph's edges."""

from evergraph.methods.closed_form.analytic import Analytic
from evergraph.methods.closed_form.auto import Auto

__all__ = ["Analytic", "Auto"]
