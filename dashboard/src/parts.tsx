// Small pieces that several pages use.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { type ClientName, Refused } from "./api";
import { lab, type TargetState } from "./lab";
import { href } from "./router";

export function Badge(props: { kind: string; children: ComponentChildren }): JSX.Element {
  return <span class={`badge badge-${props.kind}`}>{props.children}</span>;
}

const STATES: Record<TargetState, string> = {
  free: "Free",
  leased: "Leased",
  busy: "Busy",
  starting: "Starting",
  disabled: "Disabled",
  offline: "Offline",
};

export function State({ state }: { state: TargetState }): JSX.Element {
  return <Badge kind={state}>{STATES[state]}</Badge>;
}

/** Labels that the service sets for itself say nothing to people. */
export function ownLabels(labels: Record<string, string>): [string, string][] {
  const kept = Object.entries(labels).filter(([key]) => !key.includes("jumpstarter.dev/"));
  return kept.sort(([a], [b]) => a.localeCompare(b));
}

export function Labels(props: { labels: Record<string, string> }): JSX.Element {
  return (
    <span class="labels">
      {ownLabels(props.labels).map(([key, value]) => (
        <span class="label" key={key}>
          {key}={value}
        </span>
      ))}
    </span>
  );
}

export function duration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor((whole % 3600) / 60);
  if (hours < 48) return minutes ? `${hours} h ${minutes} min` : `${hours} h`;
  return `${Math.floor(hours / 24)} days`;
}

/** A moment relative to now, with the exact time on hover. Redrawn by its page every second. */
export function When({ time }: { time: string | null | undefined }): JSX.Element {
  if (!time) return <span class="quiet">–</span>;
  const seconds = (Date.parse(time) - lab.now()) / 1000;
  const text = seconds > 0 ? `in ${duration(seconds)}` : `${duration(-seconds)} ago`;
  return (
    <time dateTime={time} title={new Date(time).toLocaleString()}>
      {text}
    </time>
  );
}

/** Redraws a component every second, for times that pass. */
export function useTicking(): void {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((count) => count + 1), 1_000);
    return () => clearInterval(timer);
  }, []);
}

export function said(error: unknown): string {
  return error instanceof Refused || error instanceof Error ? error.message : String(error);
}

/** A button that shows that its work is under way, and what went wrong. */
export function Action(props: {
  run: () => Promise<void>;
  children: ComponentChildren;
  class?: string;
  confirm?: string;
  disabled?: boolean;
  label?: string;
}): JSX.Element {
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const [asking, setAsking] = useState(false);
  const mounted = useRef(true);
  useEffect(() => () => void (mounted.current = false), []);
  const run = async (): Promise<void> => {
    setAsking(false);
    setBusy(true);
    setProblem("");
    try {
      await props.run();
    } catch (error) {
      if (mounted.current) setProblem(said(error));
    } finally {
      if (mounted.current) setBusy(false);
    }
  };
  if (asking)
    return (
      <span class="asking" role="group">
        <span>{props.confirm}</span>
        <button class="danger" onClick={() => void run()}>
          Yes
        </button>
        <button onClick={() => setAsking(false)}>No</button>
      </span>
    );
  return (
    <span class="action">
      <button
        class={props.class}
        disabled={busy || props.disabled}
        aria-busy={busy}
        aria-label={props.label}
        onClick={() => (props.confirm ? setAsking(true) : void run())}
      >
        {props.children}
      </button>
      {problem && (
        <span class="problem" role="alert">
          {problem}
        </span>
      )}
    </span>
  );
}

export function TargetLink(props: { ns: string; name: string }): JSX.Element {
  if (!props.name) return <span class="quiet">–</span>;
  return <a href={href("targets", props.ns, props.name)}>{props.name}</a>;
}

export function Empty(props: { children: ComponentChildren }): JSX.Element {
  return <p class="empty">{props.children}</p>;
}

/** One line of a ``dl.facts``. */
export function Fact(props: { name: string; value: string | number }): JSX.Element {
  return (
    <div>
      <dt>{props.name}</dt>
      <dd>{props.value}</dd>
    </div>
  );
}

export interface Column<T> {
  title: string;
  /** A track of the grid, such as ``2fr``. */
  width: string;
  /** Left out on narrow screens. */
  wide?: boolean;
  cell: (row: T) => ComponentChildren;
}

export const ROW_HEIGHT = 44;
const SPARE_ROWS = 8;

/** A table that draws only the rows that can be seen, so that 10,000 rows scroll smoothly. */
export function VirtualTable<T>(props: {
  label: string;
  columns: Column<T>[];
  rows: T[];
  rowKey: (row: T) => string;
}): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 800 });
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const look = (): void => setView({ top: element.scrollTop, height: element.clientHeight });
    const observer = new ResizeObserver(look);
    observer.observe(element);
    element.addEventListener("scroll", look, { passive: true });
    look();
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", look);
    };
  }, []);
  const first = Math.max(0, Math.floor(view.top / ROW_HEIGHT) - SPARE_ROWS);
  const last = Math.ceil((view.top + view.height) / ROW_HEIGHT) + SPARE_ROWS;
  const shown = props.rows.slice(first, last);
  const wide = props.columns.map((column) => column.width).join(" ");
  const narrow = props.columns.filter((column) => !column.wide).map((column) => column.width);
  const style = { "--wide": wide, "--narrow": narrow.join(" ") } as Record<string, string>;
  const cellClass = (column: Column<T>): string => (column.wide ? "cell only-wide" : "cell");
  return (
    <div
      class="table"
      role="table"
      aria-label={props.label}
      aria-rowcount={props.rows.length + 1}
      style={style}
    >
      <div class="body" ref={box} role="rowgroup" tabIndex={0} aria-label={`${props.label}, rows`}>
        <div class="row head" role="row" aria-rowindex={1}>
          {props.columns.map((column) => (
            <div class={cellClass(column)} role="columnheader" key={column.title}>
              {column.title}
            </div>
          ))}
        </div>
        <div style={{ height: `${props.rows.length * ROW_HEIGHT}px` }} class="extent" role="presentation">
          {shown.map((row, index) => (
            <div
              class="row"
              role="row"
              aria-rowindex={first + index + 2}
              key={props.rowKey(row)}
              style={{ top: `${(first + index) * ROW_HEIGHT}px` }}
            >
              {props.columns.map((column) => (
                <div class={cellClass(column)} role="cell" key={column.title}>
                  {column.cell(row)}
                </div>
              ))}
            </div>
          ))}
        </div>
      </div>
    </div>
  );
}

export function Field(props: {
  label: string;
  children: (id: string) => ComponentChildren;
  hint?: ComponentChildren;
}): JSX.Element {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{props.label}</label>
      {props.children(id)}
      {props.hint && <div class="hint">{props.hint}</div>}
    </div>
  );
}

export function BeginField(props: { value: string; onInput: (value: string) => void }): JSX.Element {
  return (
    <Field label="Begin" hint="As soon as possible if empty">
      {(id) => (
        <input
          id={id}
          type="datetime-local"
          value={props.value}
          onInput={(event) => props.onInput(event.currentTarget.value)}
        />
      )}
    </Field>
  );
}

// For which client a lease or claim is: its place in the list.
export function ClientField(props: {
  clients: readonly ClientName[];
  value: number;
  onChange: (value: number) => void;
}): JSX.Element {
  return (
    <Field label="As">
      {(id) => (
        <select
          id={id}
          value={props.value}
          onChange={(event) => props.onChange(Number(event.currentTarget.value))}
        >
          {props.clients.map((each, index) => (
            <option value={index} key={`${each.ns}/${each.name}`}>
              {each.name} ({each.ns})
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}
