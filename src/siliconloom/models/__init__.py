"""Files of trained models: weights, tokenizers and chat templates of GGUF files and Hugging Face folders."""
