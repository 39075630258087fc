"""Benchmarks: what the service costs, as ratios to references measured in the same run.

Each module has ``async def run(*, rounds) -> tuple[Result, ...]``. Nothing in
production imports this package.
"""
