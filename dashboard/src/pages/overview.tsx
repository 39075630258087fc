// What the lab looks like now: what is free, who waits, what is wrong.
import type { JSX } from "preact";
import type { Session } from "../api";
import { type Lab, type Pool, type TargetState, useLab } from "../lab";
import { openConsole, queue, selectorOf, wantedBy } from "../leasing";
import { Action, Badge, Empty, useTicking, When } from "../parts";
import { href } from "../router";
import { PoolBar } from "./pools";

const ALWAYS_SHOWN = new Set<TargetState>(["free", "leased", "offline"]);

const SHOWN: [TargetState, string][] = [
  ["free", "Free"],
  ["leased", "Leased"],
  ["starting", "Starting"],
  ["busy", "Busy"],
  ["disabled", "Disabled"],
  ["offline", "Offline"],
];

interface Problem {
  what: string;
  where: string;
  link: string;
  since: string | null;
}

const BAD: Record<string, string> = {
  Available: "False",
  Synced: "False",
  Degraded: "True",
  ScalingLimited: "True",
  ReplicaFailure: "True",
  SetHealthy: "False",
};

export function poolProblems(pool: Pool): Problem[] {
  return pool.conditions
    .filter((found) => BAD[found.type] === found.status && found.message)
    .filter((found, index, all) => all.findIndex((o) => o.message === found.message) === index)
    .map((found) => ({
      what: found.message,
      where: pool.title,
      link: href("pools", pool.ns, pool.title),
      since: found.since,
    }));
}

function problems(lab: Lab): Problem[] {
  const found = [...lab.pool.values()].flatMap(poolProblems);
  for (const provider of lab.provider.values())
    if (provider.error)
      found.push({
        what: provider.error,
        where: provider.name,
        link: href("hosts"),
        since: provider.conditions.find((each) => each.type === "Reachable")?.since ?? null,
      });
  for (const target of lab.target.values())
    if (target.stuck)
      found.push({
        what: target.message || "it does not come back after its lease",
        where: target.name,
        link: href("targets", target.ns, target.name),
        since: null,
      });
  const offline = [...lab.target.values()].filter((target) => target.state === "offline");
  if (offline.length)
    found.push({
      what: `${offline.length} ${offline.length === 1 ? "target is" : "targets are"} offline`,
      where: offline
        .slice(0, 3)
        .map((target) => target.name)
        .join(", "),
      link: `${href("targets")}?state=offline`,
      since: null,
    });
  return found;
}

export function Overview({ session }: { session: Session }): JSX.Element {
  const lab = useLab();
  useTicking();
  const counts = new Map<TargetState, number>();
  for (const target of lab.target.values())
    counts.set(target.state, (counts.get(target.state) ?? 0) + 1);
  const waiting = queue();
  const wrong = problems(lab);
  const pools = [...lab.pool.values()].sort((a, b) => a.title.localeCompare(b.title));
  return (
    <>
      <h1>Overview</h1>
      <ul class="tiles" aria-label="Targets by state">
        {SHOWN.filter(([state]) => counts.get(state) || ALWAYS_SHOWN.has(state)).map(
          ([state, title]) => (
            <li key={state}>
              <a class={`tile tile-${state}`} href={`${href("targets")}?state=${state}`}>
                <span class="figure">{counts.get(state) ?? 0}</span>
                <span>{title}</span>
              </a>
            </li>
          ),
        )}
        <li>
          <a class="tile tile-waiting" href={href("queue")}>
            <span class="figure">{waiting.length}</span>
            <span>Waiting</span>
          </a>
        </li>
      </ul>

      <section aria-labelledby="pools-title">
        <h2 id="pools-title">Pools</h2>
        {!session.pools && <Empty>You may not see pools. Targets are on the next page.</Empty>}
        {session.pools && !pools.length && (
          <Empty>
            There is no pool yet. Apply one: <code>bullpen apply -f examples/uboot-pool.yaml</code>
          </Empty>
        )}
        <div class="cards">
          {pools.map((pool) => (
            <PoolCard key={`${pool.ns}/${pool.name}`} pool={pool} session={session} />
          ))}
        </div>
      </section>

      <div class="columns">
        <section aria-labelledby="waiting-title">
          <h2 id="waiting-title">Who waits, and why</h2>
          {!waiting.length && <Empty>Nobody waits.</Empty>}
          <ul class="plain">
            {waiting.slice(0, 8).map((lease) => (
              <li key={lease.name} class="line">
                <strong>{lease.client}</strong> wants <code>{wantedBy(lease)}</code>, asked{" "}
                <When time={lease.created} />
                <div class="quiet">{lease.message || "no decision yet"}</div>
              </li>
            ))}
          </ul>
          {waiting.length > 8 && <a href={href("queue")}>All {waiting.length}</a>}
        </section>
        <section aria-labelledby="wrong-title">
          <h2 id="wrong-title">What is wrong</h2>
          {!wrong.length && <Empty>Nothing.</Empty>}
          <ul class="plain">
            {wrong.map((problem) => (
              <li key={problem.where + problem.what} class="line">
                <Badge kind="offline">!</Badge> <a href={problem.link}>{problem.where}</a>
                {problem.since && (
                  <span class="quiet">
                    {" "}
                    · since <When time={problem.since} />
                  </span>
                )}
                <div>{problem.what}</div>
              </li>
            ))}
          </ul>
        </section>
      </div>
    </>
  );
}

function PoolCard({ pool, session }: { pool: Pool; session: Session }): JSX.Element {
  const client = session.clients.find((found) => found.ns === pool.ns);
  const selector = selectorOf(pool.labels);
  return (
    <article class="card">
      <header>
        <h3>
          <a href={href("pools", pool.ns, pool.title)}>{pool.title}</a>
        </h3>
        {pool.paused && <Badge kind="disabled">Paused</Badge>}
      </header>
      <PoolBar pool={pool} />
      <div class="card-actions">
        {client && selector && (
          <Action
            class="primary"
            label={`Open a console on ${pool.title}`}
            run={() => openConsole({ client, selector, duration: "30m" })}
          >
            Open a console
          </Action>
        )}
        <a href={`${href("targets")}?q=${encodeURIComponent(selector)}`}>Targets</a>
      </div>
    </article>
  );
}
