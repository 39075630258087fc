// Pools: how many targets are warm, starting and leased, and why.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { type Session, write } from "../api";
import { BootBars, type History, PoolChart, type Range, useHistory } from "../chart";
import { type Pool, useLab } from "../lab";
import { selectorOf } from "../leasing";
import { Action, Badge, duration, Empty, Fact, useTicking, When } from "../parts";
import { href } from "../router";
import { EditPool } from "./edit-pool";
import { poolProblems } from "./overview";

const GROUP = "objects/apis/virtualtarget.jumpstarter.dev/v1alpha1";

function path(pool: Pool): string {
  const plural = pool.kind === "ExporterSet" ? "exportersets" : "virtualtargetpools";
  return `${GROUP}/namespaces/${pool.ns}/${plural}/${pool.title}`;
}

export function PoolBar({ pool }: { pool: Pool }): JSX.Element {
  const room = Math.max(pool.max, pool.replicas, 1);
  const parts: [string, string, number][] = [
    ["leased", "leased", pool.leased],
    ["free", "warm", pool.warm],
    ["starting", "starting", pool.starting],
    ["offline", "failed", pool.failed],
  ];
  const text = parts.filter(([, , count]) => count).map(([, word, count]) => `${count} ${word}`);
  const ceiling = pool.max ? `ceiling ${pool.max}` : "no ceiling";
  return (
    <div>
      <div class="bar" aria-hidden="true">
        {parts.map(([kind, , count]) => (
          <span key={kind} class={`part part-${kind}`} style={{ width: `${(100 * count) / room}%` }} />
        ))}
      </div>
      <p class="bar-text">
        {text.length ? text.join(", ") : "empty"}
        <span class="quiet"> · {ceiling}</span>
      </p>
    </div>
  );
}

/** All pools; with a name, that pool alone, at an address of its own. */
export function Pools(props: { session: Session; ns: string; name: string }): JSX.Element {
  const { session, ns, name } = props;
  const lab = useLab();
  useTicking();
  const pools = [...lab.pool.values()]
    .filter((pool) => !name || (pool.ns === ns && pool.title === name))
    .sort((a, b) => a.title.localeCompare(b.title));
  return (
    <>
      {name && (
        <p class="crumbs">
          <a href={href("pools")}>Pools</a> /
        </p>
      )}
      <h1>{name || "Pools"}</h1>
      {!session.pools && <Empty>You may not see pools; ask for the role “view”.</Empty>}
      {session.pools && name && lab.loaded && !pools.length && <Empty>There is no such pool now.</Empty>}
      {session.pools && !name && !pools.length && (
        <Empty>
          There is no pool yet. Apply one: <code>bullpen apply -f examples/uboot-pool.yaml</code>
        </Empty>
      )}
      {pools.map((pool) => (
        <PoolSection key={`${pool.ns}/${pool.name}`} pool={pool} />
      ))}
    </>
  );
}

function PoolSection({ pool }: { pool: Pool }): JSX.Element {
  const title = `pool-${pool.ns}-${pool.name}`;
  const problems = poolProblems(pool);
  const [range, setRange] = useState<Range>("day");
  const { history, problem: unread } = useHistory(pool, range);
  return (
    <section class="card" aria-labelledby={title}>
      <header>
        <h2 id={title}>
          <a href={href("pools", pool.ns, pool.title)}>{pool.title}</a>
        </h2>
        <Badge kind="kind">{pool.kind}</Badge>
        {pool.paused && <Badge kind="disabled">Paused</Badge>}
        <span class="quiet">
          {pool.ns} · class {pool.class}
        </span>
      </header>
      <PoolBar pool={pool} />
      <dl class="facts">
        <Fact name="Warm" value={pool.wantedWarm ? `${pool.warm} of ${pool.wantedWarm}` : pool.warm} />
        <Fact name="Starting" value={pool.starting} />
        <Fact name="Leased" value={pool.leased} />
        <Fact name="Failed" value={pool.failed} />
        <Fact name="All" value={`${pool.replicas} of ${pool.max || "any number"}`} />
        {pool.bootSeconds !== null && <Fact name="Start, half within" value={short(pool.bootSeconds)} />}
        {pool.slowBootSeconds !== null && (
          <Fact name="Nine of ten within" value={short(pool.slowBootSeconds)} />
        )}
      </dl>
      <BootBars pool={pool} />
      {history && <Waits waits={history.waits} />}
      {problems.map((problem) => (
        <p class="problem" key={problem.what}>
          {problem.what}
          {problem.since && (
            <>
              {" "}
              (since <When time={problem.since} />)
            </>
          )}
        </p>
      ))}
      <div class="card-actions">
        <Scale pool={pool} />
        <Action run={() => write("PATCH", path(pool), { spec: { paused: !pool.paused } })}>
          {pool.paused ? "Resume" : "Pause"}
        </Action>
        <a href={`${href("targets")}?q=${encodeURIComponent(selectorOf(pool.labels))}`}>Targets</a>
        <EditPool pool={pool} path={path(pool)} />
      </div>
      {unread && <p class="problem">{unread}</p>}
      <PoolChart pool={pool} history={history} range={range} onRange={setRange} />
      {history && <Use seconds={history.seconds} />}
      <h3>Decisions</h3>
      {!pool.decisions.length && <Empty>Nothing was done yet.</Empty>}
      <ol class="timeline" tabIndex={0} aria-label={`Decisions of ${pool.title}`}>
        {pool.decisions.map((each, index) => (
          <li key={each.time + each.name + index}>
            <When time={each.time} /> <strong>{each.action}</strong> {each.name}
            {each.count > 1 && ` (${each.count})`} <Badge kind="kind">{each.rule}</Badge>
            <div class="quiet">{each.message}</div>
          </li>
        ))}
      </ol>
    </section>
  );
}

/** Seconds, exact enough for waits and starts. */
function short(seconds: number): string {
  if (seconds < 1) return `${Math.max(1, Math.round(1000 * seconds))} ms`;
  return seconds < 60 ? `${seconds.toFixed(1)} s` : duration(seconds);
}

/** How well the pool served the leases of the last day. */
function Waits({ waits }: { waits: History["waits"] }): JSX.Element {
  if (!waits.served) return <p class="quiet">No lease was served in the last day.</p>;
  const rate = Math.round((100 * waits.atOnce) / waits.served);
  return (
    <dl class="facts" aria-label="Leases of the last day">
      <Fact name="Leases served, last day" value={waits.served} />
      <Fact name="Hit rate" value={`${rate} %`} />
      <Fact name="Misses" value={waits.served - waits.atOnce} />
      {waits.typicalSeconds !== null && <Fact name="Wait p50" value={short(waits.typicalSeconds)} />}
      {waits.slowSeconds !== null && <Fact name="Wait p95" value={short(waits.slowSeconds)} />}
    </dl>
  );
}

/** How much of what was kept ready was used, in the range of the chart. */
function Use({ seconds }: { seconds: History["seconds"] }): JSX.Element | null {
  const all = seconds.leased + seconds.warm;
  if (!all) return null;
  return (
    <dl class="facts" aria-label="Use of the targets">
      <Fact name="Leased, sum of all targets" value={duration(seconds.leased)} />
      <Fact name="Idle, sum of all targets" value={duration(seconds.warm)} />
      <Fact name="In use" value={`${Math.round((100 * seconds.leased) / all)} %`} />
    </dl>
  );
}

function Scale({ pool }: { pool: Pool }): JSX.Element {
  const [value, setValue] = useState<string | null>(null);
  const shown = value ?? String(pool.max);
  const word = pool.kind === "ExporterSet" ? "Ceiling" : "Members";
  return (
    <span class="scale">
      <label>
        {word}{" "}
        <input
          type="number"
          min="0"
          value={shown}
          onInput={(event) => setValue(event.currentTarget.value)}
        />
      </label>
      <Action
        disabled={value === null || value === "" || Number(value) === pool.max}
        run={async () => {
          await write("PATCH", `${path(pool)}/scale`, { spec: { replicas: Number(value) } });
          setValue(null);
        }}
      >
        Scale
      </Action>
    </span>
  );
}
