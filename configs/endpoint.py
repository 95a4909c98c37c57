"""Settings of a model behind an OpenAI-compatible API: `--api.KEY=VALUE`.

python -m launch.evaluate --config=configs/sokoban.py --output=runs/api/episodes.jsonl \
    --api.base_url=http://localhost:8000/v1 --api.model=Qwen/Qwen2.5-7B-Instruct

The task's configuration holds the environment and the wording. The key is read from the
environment, nowhere else. `HELP` explains each setting; see also `docs/api.md`.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

HELP = {
    "base_url": "Address of the API, without /chat/completions, e.g. "
    "https://api.openai.com/v1; default: the policy plays on this machine.",
    "model": "Name of the model at the API.",
    "key_env": "Environment variable that holds the key; unset: no key is sent.",
    "concurrency": "Conversations run concurrently.",
    "timeout_seconds": "Seconds before a request times out and is retried.",
    "max_retries": "Retries of a request after a temporary failure: no connection, "
    "no answer in time, status 408, 409, 425, 429 or 5xx, or an answer that is not a "
    "chat completion.",
    "retry_seconds": "Seconds before the first retry; doubled each time, up to a "
    "minute. A longer Retry-After of the server counts.",
    "extra_body": "JSON object added to every request; null removes a key, as in "
    '{"max_tokens": null, "max_completion_tokens": 800}.',
    "input_price": "Price per million input tokens, in any currency; default: no cost.",
    "output_price": "Price per million output tokens.",
    "cached_input_price": "Price per million input tokens that the API reports as "
    "cached; default: input_price.",
}


def get_config() -> ConfigDict:
    """Defaults of `--api.*`."""
    config = ConfigDict()
    config.base_url = placeholder(str)
    config.model = placeholder(str)
    config.key_env = "OPENAI_API_KEY"
    config.concurrency = 8
    config.timeout_seconds = 120.0
    config.max_retries = 6
    config.retry_seconds = 1.0
    config.extra_body = ""
    config.input_price = placeholder(float)
    config.output_price = placeholder(float)
    config.cached_input_price = placeholder(float)
    return config
