// What happened: Kubernetes Events, newest first.
import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { get, Refused } from "../api";
import { lab } from "../lab";
import { Action, Badge, type Column, Empty, said, useTicking, VirtualTable, When } from "../parts";
import { setQuery, usePlace } from "../router";

interface KubernetesEvent {
  metadata: { uid: string; namespace: string; creationTimestamp: string };
  type?: string;
  reason?: string;
  message?: string;
  note?: string;
  count?: number;
  lastTimestamp?: string | null;
  eventTime?: string | null;
  involvedObject?: { kind?: string; name?: string };
}

const EVENTS_MAX = 1_000;
const NAMESPACES_MAX = 20;
const REFRESH_MS = 5_000;

function time(event: KubernetesEvent): string {
  return event.lastTimestamp ?? event.eventTime ?? event.metadata.creationTimestamp;
}

const COLUMNS: Column<KubernetesEvent>[] = [
  { title: "When", width: "7rem", cell: (row) => <When time={time(row)} /> },
  {
    title: "Reason",
    width: "minmax(12rem, 1fr)",
    cell: (row) => <Badge kind={row.type === "Warning" ? "offline" : "kind"}>{row.reason}</Badge>,
  },
  {
    title: "About",
    width: "minmax(8rem, 1.5fr)",
    wide: true,
    cell: (row) => `${row.involvedObject?.kind ?? ""}/${row.involvedObject?.name ?? ""}`,
  },
  {
    title: "Message",
    width: "4fr",
    cell: (row) => <span title={row.message ?? ""}>{row.message ?? row.note}</span>,
  },
];

async function eventsOf(place: string): Promise<KubernetesEvent[]> {
  const path = `objects/api/v1/${place}events?limit=${EVENTS_MAX}`;
  return (await get<{ items: KubernetesEvent[] }>(path)).items;
}

/** Of all namespaces or, for people without that right, of each namespace that they see. */
async function visibleEvents(): Promise<KubernetesEvent[]> {
  try {
    return await eventsOf("");
  } catch (error) {
    const rows = [...lab.target.values(), ...lab.lease.values(), ...lab.pool.values()];
    const names = [...new Set(rows.map((row) => row.ns))].sort().slice(0, NAMESPACES_MAX);
    if (!(error instanceof Refused) || error.status !== 403 || !names.length) throw error;
    const places = names.map((name) => eventsOf(`namespaces/${encodeURIComponent(name)}/`));
    const found = await Promise.allSettled(places);
    const allowed = found.filter((each) => each.status === "fulfilled");
    const [refused] = found.filter((each) => each.status === "rejected");
    if (!allowed.length && refused) throw refused.reason;
    return allowed.flatMap((each) => each.value);
  }
}

export function Events(): JSX.Element {
  useTicking();
  const { query } = usePlace();
  const text = query.get("q") ?? "";
  const [events, setEvents] = useState<KubernetesEvent[] | null>(null);
  const [problem, setProblem] = useState("");
  const load = async (): Promise<void> => {
    try {
      setEvents(await visibleEvents());
      setProblem("");
    } catch (error) {
      setProblem(said(error));
    }
  };
  useEffect(() => {
    void load();
    const timer = setInterval(() => void load(), REFRESH_MS);
    return () => clearInterval(timer);
  }, []);
  const rows = useMemo(() => {
    const wanted = text.toLowerCase();
    const about = (event: KubernetesEvent): string =>
      [event.reason, event.message, event.involvedObject?.kind, event.involvedObject?.name].join(" ");
    return (events ?? [])
      .filter((event) => about(event).toLowerCase().includes(wanted))
      .sort((a, b) => time(b).localeCompare(time(a)));
  }, [events, text]);
  return (
    <div class="fill">
      <h1>Events</h1>
      <div class="filters" role="search">
        <input
          type="search"
          class="search"
          aria-label="Search events"
          placeholder="Search   ( / )"
          value={text}
          onInput={(event) => setQuery({ q: event.currentTarget.value })}
        />
        <Action run={load}>Refresh</Action>
        <span class="quiet" role="status">
          {rows.length} events
        </span>
      </div>
      {problem && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      {events && !rows.length && <Empty>There are none.</Empty>}
      <VirtualTable label="Events" columns={COLUMNS} rows={rows} rowKey={(row) => row.metadata.uid} />
    </div>
  );
}
