"""From keys to bytes and back: reads of records, chunks and pages, waits, predictions. No MLX: the live runtime and the twin
run the same code, over real readers and over timed ones."""
