"""Launch plans that retrain on a schedule: one, `<name>-retraining`, for each entry of the file `$RELAX_SCHEDULES`.

RELAX_SCHEDULES=schedules.yaml pyflyte --pkgs workflows package ...
"""

from __future__ import annotations

from flytekit import CronSchedule, LaunchPlan

from tasks.schedules import read_schedules
from workflows.retraining import retraining

PLANS = [
    LaunchPlan.get_or_create(
        workflow=retraining,
        name=f"{name}-retraining",
        schedule=CronSchedule(schedule=schedule.cron),
        fixed_inputs=schedule.inputs(name),
    )
    for name, schedule in read_schedules().items()
]
