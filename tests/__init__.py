"""Tests; `tests/reference` holds the oracles."""

# Compiling is most of what the suite does. XLA's generator of fused loops takes three
# quarters of it and gains nothing on arrays of this size; nor do its passes over loops.
FAST_XLA_FLAGS = (
    "--xla_cpu_use_fusion_emitters=false "
    "--xla_disable_hlo_passes=while-loop-invariant-code-motion,simplify-while-loops"
)
