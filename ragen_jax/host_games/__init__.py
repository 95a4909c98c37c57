"""Table of the host games; they are imported where they are played."""

# Name in `env.host` -> its class.
HOST_GAMES = {
    "echo": "ragen_jax.host_games.echo:Echo",
    "alfworld": "ragen_jax.host_games.alfworld.game:Alfworld",
    "coding": "ragen_jax.host_games.coding.game:Coding",
    "lean": "ragen_jax.host_games.lean.game:LeanGame",
    "math": "ragen_jax.host_games.mathqa.game:MathQA",
    "search": "ragen_jax.host_games.search.game:SearchQA",
    "webshop": "ragen_jax.host_games.webshop.game:WebShop",
}
# Prefix of `env.host` -> a class that plays other libraries' environments, and its
# argument that the rest of `env.host` is: "gymnasium:FrozenLake-v1".
ADAPTERS = {
    "agent": ("ragen_jax.host_games.agent.game:AgentGame", "function"),
    "verifiers": ("ragen_jax.host_games.agent.verifiers:VerifiersGame", "taskset"),
    "openenv": ("ragen_jax.host_games.adapters.openenv:OpenEnvGame", "url"),
    "gymnasium": ("ragen_jax.host_games.adapters.gymnasium:GymnasiumGame", "id"),
    "reasoning_gym": (
        "ragen_jax.host_games.adapters.reasoning_gym:ReasoningGym",
        "data_set",
    ),
    "textarena": ("ragen_jax.host_games.adapters.textarena:TextArenaGame", "id"),
    "ragen": ("ragen_jax.host_games.adapters.ragen:RagenGame", "env"),
}
# Those whose games are programs that call the model.
AGENTS = ("agent", "verifiers")
