"""The bytes of a changelog file: change sets in Flink's layout, frames, and the footer behind them."""
