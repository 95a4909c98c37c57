"""Former place of `ragen_jax.host_games`; its documented modules are still found."""
