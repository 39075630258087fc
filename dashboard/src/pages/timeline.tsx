// Who had which target, and when: a bar for every lease.
import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { get, type Session } from "../api";
import { type Lease, lab, useLab } from "../lab";
import { type Column, duration, Empty, said, TargetLink, useTicking, VirtualTable } from "../parts";
import { setQuery, usePlace } from "../router";

interface Row {
  ns: string;
  name: string;
  leases: Lease[];
}

function Bars(props: { row: Row; hours: number }): JSX.Element {
  const now = lab.now();
  const from = now - props.hours * 3_600_000;
  const share = (time: number): number => (100 * (time - from)) / (now - from);
  return (
    <div class="track">
      {props.row.leases.map((lease) => {
        const begin = Date.parse(lease.begin ?? lease.created);
        const over = lease.phase === "ended" && lease.end ? Date.parse(lease.end) : now;
        const left = Math.max(0, share(begin));
        const text = `${lease.client}, ${duration((over - begin) / 1000)}, ${lease.phase}`;
        return (
          <span
            key={lease.name}
            class={`span span-${lease.phase}`}
            style={{ left: `min(${left}%, 100% - 4px)`, width: `${Math.max(0, share(over) - left)}%` }}
            role="img"
            aria-label={text}
            title={`${text}, from ${new Date(begin).toLocaleString()}`}
          >
            {lease.client}
          </span>
        );
      })}
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
    const since = lab.now() - hours * 3_600_000;
    const found = new Map<string, Row>();
    for (const lease of leases ?? []) {
      if (lease.phase === "ended" && Date.parse(lease.end ?? lease.created) < since) continue;
      const row = found.get(lease.target) ?? { ns, name: lease.target, leases: [] };
      row.leases.push(lease);
      found.set(lease.target, row);
    }
    return [...found.values()].sort((a, b) =>
      a.name.localeCompare(b.name, undefined, { numeric: true }),
    );
  }, [leases, hours]);
  const columns: Column<Row>[] = [
    { title: "Target", width: "minmax(6rem, 12rem)", cell: (row) => <TargetLink {...row} /> },
    {
      title: `The last ${hours === 1 ? "hour" : `${hours} hours`}, until now`,
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
          {rows.length} {rows.length === 1 ? "target" : "targets"}
        </span>
      </div>
      {problem && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      {loaded && leases && !rows.length && <Empty>No target was leased in this time.</Empty>}
      <VirtualTable label="Leases by target" columns={columns} rows={rows} rowKey={(row) => row.name} />
    </div>
  );
}
