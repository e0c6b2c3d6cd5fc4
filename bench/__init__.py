"""mqlake beside the Java store (RocketMQ 5.3.3) in one run: `python -m bench`, see docs/performance.md."""
