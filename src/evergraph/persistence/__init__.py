"""Saving so that nothing is lost or half-written: atomic files, checkpoints of plain values and tensors."""
