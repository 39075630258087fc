// Who did what: the newest changes and refusals of the audit log.
import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { get } from "../api";
import { Action, Badge, type Column, Empty, said, useTicking, VirtualTable, When } from "../parts";
import { setQuery, usePlace } from "../router";

interface AuditEvent {
  id: string;
  time: string;
  who: string;
  verb: string;
  what: string;
  ns: string;
  from: string;
  code: number;
  message: string;
}

const COLUMNS: Column<AuditEvent>[] = [
  { title: "When", width: "6rem", cell: (row) => <When time={row.time} /> },
  {
    title: "Who",
    width: "minmax(5rem, 2fr)",
    cell: (row) => <span title={row.who}>{row.who.replace(/^internal:|:[0-9a-f-]{36}$/g, "")}</span>,
  },
  { title: "Verb", width: "4rem", cell: (row) => row.verb },
  {
    title: "What",
    width: "minmax(5rem, 3fr)",
    cell: (row) => <span title={row.what}>{row.what}</span>,
  },
  { title: "From", width: "8rem", wide: true, cell: (row) => row.from },
  {
    title: "Outcome",
    width: "minmax(6rem, 2fr)",
    wide: true,
    cell: (row) => (
      <span title={row.message}>
        <Badge kind={row.code >= 400 ? "offline" : "free"}>{row.code}</Badge> {row.message}
      </span>
    ),
  },
];

export function Audit(): JSX.Element {
  useTicking();
  const { query } = usePlace();
  const text = query.get("q") ?? "";
  const [events, setEvents] = useState<AuditEvent[] | null>(null);
  const [elsewhere, setElsewhere] = useState("");
  const [problem, setProblem] = useState("");
  const load = async (): Promise<void> => {
    try {
      const found = await get<{ events: AuditEvent[]; elsewhere: string }>("audit");
      setEvents(found.events);
      setElsewhere(found.elsewhere);
      setProblem("");
    } catch (error) {
      setProblem(said(error));
    }
  };
  useEffect(() => void load(), []);
  const rows = useMemo(() => {
    const wanted = text.toLowerCase();
    const about = (row: AuditEvent): string => [row.who, row.verb, row.what, row.message].join(" ");
    return (events ?? []).filter((row) => about(row).toLowerCase().includes(wanted));
  }, [events, text]);
  return (
    <div class="fill">
      <h1>Audit</h1>
      <div class="filters" role="search">
        <input
          type="search"
          class="search"
          aria-label="Search the audit log"
          placeholder="Search   ( / )"
          value={text}
          onInput={(event) => setQuery({ q: event.currentTarget.value })}
        />
        <Action run={load}>Refresh</Action>
        <span class="quiet" role="status">
          {rows.length} of the last day
        </span>
      </div>
      {problem && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      {elsewhere && <p>{elsewhere}</p>}
      {events && !rows.length && !elsewhere && <Empty>There are none.</Empty>}
      <VirtualTable label="Audit events" columns={COLUMNS} rows={rows} rowKey={(row) => row.id} />
    </div>
  );
}
