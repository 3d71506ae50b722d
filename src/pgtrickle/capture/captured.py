"""Whether a source is captured, now and since it was said to be: the one rule, as SQL. Pure.

Asked with the changes of a window (`change_window.py`), and for many sources at once (`idle_windows.py`): a window
without changes means something only while nothing is missed.
"""

from __future__ import annotations

from typing import Final

TRIGGERS: Final = "count(*) AS enabled, count(*) FILTER (WHERE tgtype & 32 <> 0) AS truncating"
"""What `RULE` needs of the triggers that call the source's capture function and are enabled (`tgenabled = 'A'`):
all of them, and those for TRUNCATE, which stay when rows come from the WAL."""

RULE: Final = """
CASE WHEN k.cdc_mode = 'WAL'
     THEN t.truncating * 4 = k.trigger_count
          AND EXISTS (SELECT FROM pgtrickle_internal.pgt_published AS r WHERE r.source_relid = k.source_relid)
          AND EXISTS (SELECT FROM pgtrickle_internal.pgt_slot AS s WHERE s.alive)
     ELSE t.enabled = k.trigger_count AND pgtrickle_internal.sees_all_writers(k.source_relid, k.trigger_level)
          AND pgtrickle_internal.outlived_crashes(k.source_relid, k.unlogged) END
"""
"""Of a row `k` of pgt_change_tracking, with its triggers counted in `t`."""
