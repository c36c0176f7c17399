"""Recent changes of Wikipedia: bots to one place, the words that people write to another.

tidegate generate wikipedia --rows 100000 --out data/wikipedia --malformed 0.001
tidegate run examples/wikipedia.py --until-done

Lines that are no JSON end up in the checkpoint's folder `dead-letters`, with the reason.
"""

import tidegate as tg

p = tg.Pipeline("wikipedia")
changes = p.source(tg.sources.Wikipedia("data/wikipedia"))
bots, people = changes.branch("bot")
bots.select("wiki", "user", "title").sink(tg.sinks.Files("out/bots", format="json"))
words = people.flat_map("word", "split(lower(title), '[^a-z]+')").filter("length(word) > 2")
words.select("timestamp", "wiki", "word").sink(tg.sinks.Files("out/words", format="parquet"))

if __name__ == "__main__":
    p.run(until_done=True)
