// All targets, physical and virtual, with filters that are part of the address.
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { type Target, useLab } from "../lab";
import { type Column, Labels, ownLabels, State, TargetLink, useTicking, VirtualTable, When } from "../parts";
import { setQuery, usePlace } from "../router";

/** Whether every word is part of a name, holder, pool or label; ``a=b`` is a whole label. */
export function matches(target: Target, words: string[]): boolean {
  return words.every((word) => {
    const [key = "", value] = word.split("=", 2);
    if (value !== undefined && key in target.labels) return target.labels[key] === value;
    if (key === "host" && value !== undefined) return target.host === value;
    const text = [target.name, target.holder, target.pool, target.message].join(" ").toLowerCase();
    return (
      text.includes(word) ||
      ownLabels(target.labels).some((label) => label.join("=").toLowerCase().includes(word))
    );
  });
}

const COLUMNS: Column<Target>[] = [
  { title: "Name", width: "minmax(8rem, 2fr)", cell: (row) => <TargetLink {...row} /> },
  { title: "State", width: "7rem", cell: (row) => <State state={row.state} /> },
  {
    title: "Holder",
    width: "minmax(6rem, 1.2fr)",
    cell: (row) => row.holder ?? <span class="quiet">–</span>,
  },
  { title: "Ends", width: "7rem", wide: true, cell: (row) => row.holder && <When time={row.until} /> },
  {
    title: "Pool",
    width: "minmax(5rem, 1fr)",
    wide: true,
    cell: (row) => row.pool ?? <span class="quiet">–</span>,
  },
  { title: "Labels", width: "3fr", wide: true, cell: (row) => <Labels labels={row.labels} /> },
];

export function Targets(): JSX.Element {
  const lab = useLab();
  useTicking();
  const { query } = usePlace();
  const text = query.get("q") ?? "";
  const state = query.get("state") ?? "";
  const rows = useMemo(() => {
    const words = text.toLowerCase().split(/[\s,]+/).filter(Boolean);
    return [...lab.target.values()]
      .filter((target) => (!state || target.state === state) && matches(target, words))
      .sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }));
  }, [lab.version, text, state]);
  return (
    <div class="fill">
      <h1>Targets</h1>
      <div class="filters" role="search">
        <input
          type="search"
          class="search"
          aria-label="Search targets"
          placeholder="Search name, holder, pool, label=value   ( / )"
          value={text}
          onInput={(event) => setQuery({ q: event.currentTarget.value })}
        />
        <select
          aria-label="State"
          value={state}
          onChange={(event) => setQuery({ state: event.currentTarget.value })}
        >
          <option value="">Every state</option>
          <option value="free">Free</option>
          <option value="leased">Leased</option>
          <option value="busy">Busy</option>
          <option value="starting">Starting</option>
          <option value="disabled">Disabled</option>
          <option value="offline">Offline</option>
        </select>
        <span class="quiet" role="status">
          {rows.length.toLocaleString()} of {lab.target.size.toLocaleString()}
        </span>
      </div>
      <VirtualTable
        label="Targets"
        columns={COLUMNS}
        rows={rows}
        rowKey={(row) => `${row.ns}/${row.name}`}
      />
    </div>
  );
}
