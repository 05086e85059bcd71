"""What only makes a GPU faster. Without this package everything works, slower."""
