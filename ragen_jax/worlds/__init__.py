"""Table of the games in Python; they are imported where they are played."""

# Name in `env.host` -> its class.
WORLDS = {
    "echo": "ragen_jax.worlds.echo:Echo",
    "alfworld": "ragen_jax.worlds.alfworld:Alfworld",
    "coding": "ragen_jax.worlds.coding:Coding",
    "lean": "ragen_jax.worlds.lean:LeanGame",
    "math": "ragen_jax.worlds.mathqa:MathQA",
    "search": "ragen_jax.worlds.search:SearchQA",
    "webshop": "ragen_jax.worlds.webshop:WebShop",
}
# Prefix of `env.host` -> a class that plays other libraries' environments, and its
# argument that the rest of `env.host` is: "gymnasium:FrozenLake-v1".
DOORS = {
    "openenv": ("ragen_jax.worlds.openenv:OpenEnvGame", "url"),
    "gymnasium": ("ragen_jax.worlds.foreign_gymnasium:GymnasiumGame", "id"),
    "ragen": ("ragen_jax.worlds.foreign_ragen:RagenGame", "env"),
}
