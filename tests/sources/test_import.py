"""What importing the sources costs."""

from __future__ import annotations

import subprocess
import sys


def test_declaring_sources_imports_no_heavy_library() -> None:
    code = (
        "import sys; from tidegate.sources import Sensors, Files, Wikipedia, Zipf, Sine;"
        "Sensors(keys=Zipf(1.1), rate=Sine(10, 5, 60)); Files('in', schema='id int'); Wikipedia('in');"
        "import tidegate.cli.generate;"
        "print([m for m in ('pyspark', 'numpy', 'pyarrow', 'pandas') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
