"""The dashboard "One run": how it learns, and what each of its workers does."""

from __future__ import annotations

from deploy.observability.panels import (
    Dashboard,
    Panel,
    bars,
    label_variable,
    lines,
    links_besides,
    make_dashboard,
    number,
    query,
    staleness_heatmap,
)

UID = "dsgd-one-run"
RUN = 'run_id="$run"'
WORKER = "worker {{worker}}"


def one_run() -> Dashboard:
    """Return the dashboard of the run that the variable `run` names."""
    variables = [label_variable("run", "Run", "label_values(dsgd_run_info, run_id)", multi=False)]
    rows = [
        ("Now", _now()),
        ("Health", _health()),
        ("Learning", _learning()),
        ("Mixture of experts", _experts()),
        ("Workers: time", _time()),
        ("Workers: staleness", _staleness()),
        ("Faults and traffic", _faults()),
        ("Links and memory", _links()),
    ]
    return make_dashboard(
        UID,
        "Distributed SGD: one run",
        "One run in full, worker by worker.",
        variables,
        rows,
        links_besides(UID),
    )


def _now() -> list[Panel]:
    return [
        number(
            "Updates",
            "short",
            "Updates applied to the weights so far.",
            query(f"sum(dsgd_updates_total{{{RUN}}})"),
            width=4,
            decimals=0,
        ),
        number(
            "Time since the last update",
            "s",
            "Wall seconds. It should stay near the time of an update (below); once the run is over it grows.",
            query(f"time() - max(dsgd_last_update_timestamp_seconds{{{RUN}}})"),
            width=4,
        ),
        number(
            "Updates per second",
            "ops",
            "Mean of the whole run so far, in engine seconds (wall on Ray, virtual in the simulator).",
            query(f"run:dsgd_updates_per_second:ratio{{{RUN}}}"),
            width=4,
        ),
        number(
            "Mean staleness",
            "short",
            "Updates between reading and applying, mean over all gradients so far.",
            query(f"run:dsgd_staleness_updates:mean{{{RUN}}}"),
            width=4,
        ),
        number(
            "Idle share",
            "percentunit",
            "Share of the workers' time without computing, whole run so far. 0 is best.",
            query(f"run:dsgd_idle:ratio{{{RUN}}}"),
            width=4,
            decimals=1,
        ),
        number(
            "Straggler index",
            "none",
            "The slowest worker's mean compute time over the median worker's, last five minutes. 1: all "
            "equal.",
            query(f"run:dsgd_straggler_index:ratio5m{{{RUN}}}"),
            width=4,
        ),
    ]


def _health() -> list[Panel]:
    return [
        number(
            "Health",
            "percentunit",
            "The worst of its parts, now; 100 %: nothing is wrong. Only while the run takes updates.",
            query(f"min(run:dsgd_health:ratio{{{RUN}}})"),
            width=4,
            decimals=0,
        ),
        lines(
            "Parts of the health",
            "percentunit",
            "progress: the longest usual time between updates over the time since the last one. loss: twice "
            "its lowest of six hours over the loss. staleness: 100 % while the mode's bound holds. workers: "
            "1.5 over the straggler index. faults: 1 minus the share of mini-batches computed again in ten "
            "minutes. Each is at most 100 %, and falls to 0 as an alert comes near.",
            query(f"run:dsgd_health_part:ratio{{{RUN}}}", "{{part}}"),
            width=20,
        ),
    ]


def _links() -> list[Panel]:
    rate = f"{{{RUN}}}[$__rate_interval]"
    exchange = f"sum by (worker) (rate(dsgd_exchange_seconds_total{rate}))"
    sent = (
        f"(sum by (worker) (rate(dsgd_worker_sent_bytes_total{rate})) "
        f"+ sum by (worker) (rate(dsgd_worker_received_bytes_total{rate})))"
    )
    return [
        lines(
            "Exchange latency of each link",
            "s",
            "Engine seconds that the messages of a task take, there and back, with all waiting for links and "
            "servers. Where one worker's is longer, look at its node's network.",
            query(f"{exchange} / sum by (worker) (rate(dsgd_staleness_updates_count{rate}))", WORKER),
            width=8,
        ),
        lines(
            "Bandwidth of each link",
            "Bps",
            "Bytes that a worker's link carries while messages are on it, both ways: less than what it "
            "could, as latency and waiting count too.",
            query(f"{sent} / {exchange}", WORKER),
            width=8,
        ),
        lines(
            "Tasks in flight",
            "short",
            "Tasks that were handed out and whose results have not been taken. Well below the number of "
            "workers: they wait for each other or for the driver.",
            query(f"max(dsgd_tasks_in_flight{{{RUN}}})", "in flight"),
            width=8,
        ),
        lines(
            "Memory of the run's processes",
            "bytes",
            "In memory, shared pages included, of the driver and of each process that carries workers. What "
            "only grows ends in OOMKilled.",
            query(f"max by (process) (dsgd_memory_bytes{{{RUN}}})", "{{process}}"),
            width=12,
        ),
        lines(
            "Numbers of the strategy",
            "none",
            "What the strategy hands over in Update.extra, by its own names, like tau, the local steps of "
            "AdaComm. Empty where a mode hands over nothing.",
            query(f"max by (name) (dsgd_extra{{{RUN}}})", "{{name}}"),
            width=12,
        ),
    ]


def _learning() -> list[Panel]:
    return [
        lines(
            "Loss",
            "none",
            "Logarithmic. The training loss of single updates is noisy: look at its mean of a minute, and "
            "at the loss on held-out samples. Training falling while held-out rises is over-fitting; both "
            "rising is divergence.",
            query(f"max(dsgd_train_loss{{{RUN}}})", "training, last update"),
            query(f"run:dsgd_train_loss:mean1m{{{RUN}}}", "training, mean of a minute", "B"),
            query(f"max(dsgd_eval_loss{{{RUN}}})", "held out", "C"),
            width=12,
            log=True,
        ),
        lines(
            "Accuracy",
            "percentunit",
            "Share of held-out samples classified correctly at the last evaluation. Regression has none.",
            query(f"max(dsgd_eval_accuracy{{{RUN}}})", "held out"),
            width=6,
        ),
        lines(
            "Drift of local weights",
            "none",
            "Only with local steps: how far the workers' weights are from their average when averaged, "
            "the mean over the updates so far. Large or growing drift calls for fewer local steps.",
            query(f"max(dsgd_localsgd_drift{{{RUN}}})", "mean distance"),
            width=6,
        ),
        lines(
            "Gradient norm",
            "none",
            "Of the mean gradient of an update, looked at once a second. Growing without end: the steps are "
            "too large. In local SGD: the workers' way, over step size and mini-batches.",
            query(f"max(dsgd_gradient_norm{{{RUN}}})", "norm"),
            width=12,
            log=True,
        ),
        lines(
            "Step size",
            "none",
            "The option --lr times the schedule's factor. A run that went back after it had diverged goes on "
            "with half of it.",
            query(f"max(dsgd_learning_rate{{{RUN}}})", "lr"),
            width=12,
        ),
    ]


def _experts() -> list[Panel]:
    return [
        lines(
            "Load of each expert",
            "percentunit",
            "Share of its layer's choices on held-out data at the last evaluation; even loads are at 1/E. "
            "One line far above takes most tokens; a line at 0 is an expert that none chooses. "
            "Only with mixtures of experts.",
            query(
                f"max by (layer, expert) (dsgd_expert_load_share{{{RUN}}})",
                "layer {{layer}}, expert {{expert}}",
            ),
            width=12,
        ),
        lines(
            "Most loaded expert",
            "none",
            "MaxVio: by how many mean loads the most loaded expert is above the mean. 0 is even; growing, or "
            "going up and down by more than chance, calls for another --balance-rate. A worker's own is of "
            "its mini-batch, or of its own weights: with unequal data it may be large while the held-out "
            "one is small. Only with mixtures of experts.",
            query(f"max(dsgd_expert_max_violation{{{RUN}}})", "held out"),
            query(f"max by (worker) (dsgd_worker_expert_max_violation{{{RUN}}})", WORKER, "B"),
            width=12,
        ),
        lines(
            "Routers",
            "percentunit",
            "Entropy: of the scores of a token, as a share of log E; near 100 % a router hardly prefers any "
            "expert. Agreement: share of a token's experts that two workers' own weights both choose; only "
            "where workers return weights. Dropped: share of the choices beyond --capacity. Only with "
            "mixtures of experts.",
            query(f"max(dsgd_router_entropy_ratio{{{RUN}}})", "entropy"),
            query(f"max(dsgd_router_agreement_ratio{{{RUN}}})", "agreement", "B"),
            query(f"max(dsgd_choices_dropped_ratio{{{RUN}}})", "dropped", "C"),
            width=12,
        ),
        lines(
            "Idle experts",
            "short",
            "Experts, in all layers, that no held-out token chooses. They learn nothing; a larger "
            "--balance-rate brings them back. Only with mixtures of experts.",
            query(f"max(dsgd_experts_idle{{{RUN}}})", "idle"),
            width=12,
        ),
    ]


def _time() -> list[Panel]:
    rate = f"{{{RUN}}}[$__rate_interval]"
    return [
        lines(
            "Mini-batches per second",
            "cps",
            "Applied mini-batches of each worker. Equal lines: equal workers, or a barrier. In "
            "asynchronous modes a slow worker's line is lower; a line at 0 is a worker that hangs or is "
            "held back.",
            query(f"sum by (worker) (rate(dsgd_gradients_total{rate}))", WORKER),
            width=8,
        ),
        lines(
            "Compute time",
            "s",
            "Engine seconds a task took to compute, mean of those that came in. One line above the others "
            "is a straggler; all lines rising together is a loaded machine.",
            query(
                f"sum by (worker) (rate(dsgd_compute_seconds_sum{rate})) "
                f"/ sum by (worker) (rate(dsgd_compute_seconds_count{rate}))",
                WORKER,
            ),
            width=8,
        ),
        lines(
            "Waiting time",
            "s",
            "Engine seconds around a task without computing: transfer, then waiting for the next one. At a "
            "barrier the slowest worker waits least.",
            query(
                f"sum by (worker) (rate(dsgd_wait_seconds_sum{rate})) "
                f"/ sum by (worker) (rate(dsgd_wait_seconds_count{rate}))",
                WORKER,
            ),
            width=8,
        ),
        bars(
            "Idle share by worker",
            "percentunit",
            "Whole run so far. The worker with the smallest share is the one the others wait for.",
            query(f"worker:dsgd_idle:ratio{{{RUN}}}", WORKER),
            width=8,
        ),
        bars(
            "Mean compute time by worker",
            "s",
            "Whole run so far. More than 1.5 times the median for ten minutes raises an alert.",
            query(f"worker:dsgd_compute_seconds:mean{{{RUN}}}", WORKER),
            width=8,
        ),
        lines(
            "Time of an update",
            "s",
            "Engine seconds from one update to the next: the median, and what one in twenty exceeds. "
            "Values within a bucket of the histogram (1, 2, 5, 10 ms, ...) are interpolated.",
            query(f"histogram_quantile(0.5, sum by (le) (rate(dsgd_update_seconds_bucket{rate})))", "p50"),
            query(
                f"histogram_quantile(0.95, sum by (le) (rate(dsgd_update_seconds_bucket{rate})))", "p95", "B"
            ),
            width=8,
        ),
    ]


def _staleness() -> list[Panel]:
    rate = f"{{{RUN}}}[$__rate_interval]"
    return [
        staleness_heatmap(
            "Staleness",
            "Each column is a moment, each cell how many gradients a second came with that staleness. "
            "Several bands are several speeds of workers.",
            f"sum by (le) (rate(dsgd_staleness_updates_bucket{rate}))",
            width=12,
        ),
        lines(
            "Mean staleness of each worker",
            "short",
            "A slow worker's gradients are the stalest: more updates of the others fall into one of its "
            "own tasks.",
            query(
                f"sum by (worker) (rate(dsgd_staleness_updates_sum{rate})) "
                f"/ sum by (worker) (rate(dsgd_staleness_updates_count{rate}))",
                WORKER,
            ),
            width=12,
        ),
        bars(
            "Mean staleness by worker",
            "short",
            "Whole run so far; at the end it is staleness.by_worker of the record.",
            query(f"worker:dsgd_staleness_updates:mean{{{RUN}}}", WORKER),
            width=8,
        ),
        lines(
            "Staleness so far, and its bound",
            "short",
            "Quantiles of the whole run, the largest value, and the bound that holds in this mode with "
            "these options, where there is one. The largest must never be above the bound: that raises an "
            "alert.",
            query(f"run:dsgd_staleness_updates:quantile{{{RUN}}}", "quantile {{quantile}}"),
            query(f"max(dsgd_staleness_max_updates{{{RUN}}})", "largest", "B"),
            query(f"max(dsgd_staleness_bound_updates{{{RUN}}})", "bound", "C"),
            width=8,
        ),
        lines(
            "Clock gap",
            "short",
            "Mini-batches between the fastest and the slowest worker. A barrier keeps it near 0, slack "
            "bounds it, and without a bound a straggler makes it grow for ever.",
            query(f"max(dsgd_clock_gap_steps{{{RUN}}})", "fastest - slowest"),
            width=8,
        ),
    ]


def _faults() -> list[Panel]:
    return [
        lines(
            "Restarts of each worker",
            "short",
            "How often a worker was lost and restarted. After --max-restarts within "
            "--restart-window-s the run fails.",
            query(f"sum by (worker) (dsgd_worker_restarts_total{{{RUN}}})", WORKER),
            width=8,
        ),
        bars(
            "Faults by kind",
            "short",
            "Faults that are over, and at the end those that the run ended in: asked for with --faults, or "
            "processes that died by themselves (kill).",
            query(f"sum by (kind) (dsgd_faults_total{{{RUN}}})", "{{kind}}"),
            width=8,
        ),
        lines(
            "Time to recover from a fault",
            "s",
            "Engine seconds until all workers concerned computed again, whole run so far: the median, and "
            "what one in twenty exceeds. Empty without faults.",
            query(
                f"histogram_quantile(0.5, sum by (le) (dsgd_fault_recovery_seconds_bucket{{{RUN}}}))", "p50"
            ),
            query(
                f"histogram_quantile(0.95, sum by (le) (dsgd_fault_recovery_seconds_bucket{{{RUN}}}))",
                "p95",
                "B",
            ),
            width=8,
        ),
        lines(
            "Mini-batches computed again",
            "percentunit",
            "Share of the applied mini-batches that faults had computed a second time, whole run so far. "
            "Above a fifth for ten minutes raises an alert.",
            query(
                f"sum(dsgd_repeated_gradients_total{{{RUN}}}) / sum(dsgd_gradients_total{{{RUN}}})",
                "repeated",
            ),
            width=12,
        ),
        lines(
            "Bytes per second",
            "Bps",
            "Weights to the workers, and gradients or weights to the server.",
            query(f"sum by (direction) (rate(dsgd_bytes_total{{{RUN}}}[$__rate_interval]))", "{{direction}}"),
            width=12,
        ),
    ]
