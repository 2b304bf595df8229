"""One expression language: its text and tree, its functions, and its evaluation over batches."""
