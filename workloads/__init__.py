"""What a machine must do: transformer graphs from YAML or Hugging Face config.json, GEMM lists, convolutions."""
