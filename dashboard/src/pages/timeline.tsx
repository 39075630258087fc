// Who had which target, and when: a bar for every lease.
import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { get, type Session } from "../api";
import { type Claim, type Lease, lab, useLab } from "../lab";
import { type Column, duration, Empty, said, TargetLink, useTicking, VirtualTable } from "../parts";
import { setQuery, usePlace } from "../router";

const HOUR = 3_600_000;
const REDRAW_MS = 5_000;
/** This share of the past that is shown is shown of the future. */
const AHEAD = 1 / 3;

interface Bar {
  key: string;
  client: string;
  kind: "ended" | "active" | "planned" | "booked";
  begin: number;
  end: number;
}

interface Row {
  ns: string;
  /** Empty for what is booked without a certain target. */
  name: string;
  bars: Bar[];
}

const WORDS: Record<Bar["kind"], string> = {
  ended: "ended",
  active: "active",
  planned: "until its end",
  booked: "booked",
};

/** A lease as bars: an active one until now, and then until its end. */
function barsOf(lease: Lease, now: number): Bar[] {
  const begin = Date.parse(lease.begin ?? lease.created);
  const end = lease.end ? Date.parse(lease.end) : now;
  const bar = { key: lease.name, client: lease.client, begin, end };
  if (lease.phase === "scheduled") return [{ ...bar, kind: "booked" }];
  if (lease.phase === "ended") return [{ ...bar, kind: "ended" }];
  const rest: Bar = { ...bar, key: `${lease.name}/rest`, kind: "planned", begin: now };
  return [{ ...bar, kind: "active", end: now }, ...(end > now ? [rest] : [])];
}

function claimBar(claim: Claim): Bar {
  const begin = Date.parse(claim.begin ?? claim.created);
  const end = begin + 1000 * (claim.seconds ?? 0);
  return { key: `claim ${claim.name}`, client: claim.client, kind: "booked", begin, end };
}

function targetOf(lease: Lease): string {
  return lease.target || (/^name=(.*)/.exec(lease.wanted)?.[1] ?? "");
}

function Bars(props: { row: Row; hours: number }): JSX.Element {
  const now = lab.now();
  const from = now - props.hours * HOUR;
  const to = now + AHEAD * props.hours * HOUR;
  const share = (time: number): number =>
    (100 * (Math.min(to, Math.max(from, time)) - from)) / (to - from);
  return (
    <div class="track">
      {props.row.bars.map((bar) => {
        const left = share(bar.begin);
        const text = `${bar.client}, ${duration((bar.end - bar.begin) / 1000)}, ${WORDS[bar.kind]}`;
        return (
          <span
            key={bar.key}
            class={`span span-${bar.kind}`}
            style={{ left: `min(${left}%, 100% - 4px)`, width: `${share(bar.end) - left}%` }}
            role="img"
            aria-label={text}
            title={`${text}, from ${new Date(bar.begin).toLocaleString()}`}
          >
            {bar.client}
          </span>
        );
      })}
      <span class="now" style={{ left: `${share(now)}%` }} />
    </div>
  );
}

export function Timeline({ session }: { session: Session }): JSX.Element {
  const { loaded, version } = useLab();
  useTicking();
  const { query } = usePlace();
  const hours = Number(query.get("hours") ?? "6") || 6;
  const spaces = [...new Set([...lab.target.values()].map((target) => target.ns))].sort();
  const ns = query.get("ns") ?? session.own[0]?.ns ?? spaces[0] ?? "default";
  const [leases, setLeases] = useState<Lease[] | null>(null);
  const [problem, setProblem] = useState("");
  const open = useMemo(
    () => [...lab.lease.values()].map((lease) => `${lease.name} ${lease.phase}`).join(),
    [version],
  );
  useEffect(() => {
    let current = true;
    const query = new URLSearchParams({ namespace: ns });
    get<{ leases: Lease[] }>(`timeline?${query}`).then(
      (found) => current && (setLeases(found.leases), setProblem("")),
      (error: unknown) => current && setProblem(said(error)),
    );
    return () => void (current = false);
  }, [ns, open]);
  const rows = useMemo(() => {
    const now = lab.now();
    const found = new Map<string, Row>();
    const add = (name: string, bars: Bar[]): void => {
      const seen = bars.filter(
        (bar) => bar.end >= now - hours * HOUR && bar.begin <= now + AHEAD * hours * HOUR,
      );
      if (!seen.length) return;
      const row = found.get(name) ?? { ns, name, bars: [] };
      row.bars.push(...seen);
      found.set(name, row);
    };
    for (const lease of leases ?? []) add(lease.target, barsOf(lease, now));
    for (const lease of lab.lease.values())
      if (lease.ns === ns && lease.phase !== "waiting") add(targetOf(lease), barsOf(lease, now));
    for (const claim of lab.claim.values())
      if (claim.ns === ns && claim.phase === "scheduled") add("", [claimBar(claim)]);
    return [...found.values()].sort((a, b) =>
      a.name.localeCompare(b.name, undefined, { numeric: true }),
    );
  }, [leases, hours, ns, version, Math.floor(lab.now() / REDRAW_MS)]);
  const targets = rows.filter((row) => row.name).length;
  const columns: Column<Row>[] = [
    {
      title: "Target",
      width: "minmax(6rem, 12rem)",
      cell: (row) => (row.name ? <TargetLink {...row} /> : <span class="quiet">Any, booked</span>),
    },
    {
      title: `The last ${duration(hours * 3600)}, and the next ${duration(AHEAD * hours * 3600)}`,
      width: "1fr",
      cell: (row) => <Bars row={row} hours={hours} />,
    },
  ];
  return (
    <div class="fill">
      <h1>Timeline</h1>
      <div class="filters">
        <select
          aria-label="Time"
          value={hours}
          onChange={(event) => setQuery({ hours: event.currentTarget.value })}
        >
          <option value="1">1 hour</option>
          <option value="6">6 hours</option>
          <option value="24">24 hours</option>
        </select>
        {spaces.length > 1 && (
          <select
            aria-label="Namespace"
            value={ns}
            onChange={(event) => setQuery({ ns: event.currentTarget.value })}
          >
            {spaces.map((space) => (
              <option key={space}>{space}</option>
            ))}
          </select>
        )}
        <span class="quiet" role="status">
          {targets} {targets === 1 ? "target" : "targets"}
        </span>
      </div>
      {problem && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      {loaded && leases && !rows.length && <Empty>No target was leased or booked in this time.</Empty>}
      <VirtualTable label="Leases by target" columns={columns} rows={rows} rowKey={(row) => row.name} />
    </div>
  );
}
