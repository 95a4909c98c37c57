"""Where metrics go besides `metrics.jsonl`: the names that `logging.sinks` may have."""

# Name -> its class. The name is also that of the package and of the extra it needs,
# except for TensorBoard, whose writer is a requirement.
SINKS = {
    "tensorboard": "ragen_jax.runs.sinks.tensorboard:EventFile",
    "wandb": "ragen_jax.runs.sinks.wandb:WandbRun",
    "mlflow": "ragen_jax.runs.sinks.mlflow:MlflowRun",
}
