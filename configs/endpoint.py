"""How a model behind an OpenAI-compatible HTTP endpoint is asked: `--api.KEY=VALUE`.

python -m launch.evaluate --config=configs/sokoban.py --output=runs/api/episodes.jsonl \
    --api.base_url=http://localhost:8000/v1 --api.model=Qwen/Qwen2.5-7B-Instruct

What is played and how it is worded stands in the task's own configuration. The key is
read from the environment, nowhere else. See `docs/evaluation.md`.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
    """Defaults of `--api.*`."""
    config = ConfigDict()
    # Where `/chat/completions` is, e.g. https://api.openai.com/v1. None: no endpoint is
    # asked, the policy plays here.
    config.base_url = placeholder(str)
    # The model's name there.
    config.model = placeholder(str)
    # Environment variable that holds the key; unset or empty: none is sent.
    config.key_env = "OPENAI_API_KEY"
    # Conversations at a time.
    config.concurrency = 8
    # Seconds until a request is given up and sent again.
    config.timeout_seconds = 120.0
    # Times a request is sent again after a failure that may pass: no connection, no
    # answer in time, status 408, 409, 425, 429 or 5xx, an answer that makes no sense.
    config.max_retries = 6
    # Seconds before the first of them; doubled each time, up to a minute. A server's
    # Retry-After counts if it is longer.
    config.retry_seconds = 1.0
    # A JSON object that is added to every request; null takes a key out, as in
    # '{"max_tokens": null, "max_completion_tokens": 800, "reasoning_effort": "low"}'.
    config.extra_body = ""
    # Prices per million tokens, in any currency; None: no cost is counted.
    config.input_price = placeholder(float)
    config.output_price = placeholder(float)
    # Of prompt tokens that the endpoint reports as cached; None: as all others.
    config.cached_input_price = placeholder(float)
    return config
