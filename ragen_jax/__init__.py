"""StarPO: multi-turn reinforcement learning of LLM agents on the accelerator."""

__version__ = "0.1.0"
