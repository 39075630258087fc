// The size of a pool over time: leased, warm and starting members, and the ceiling.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get } from "./api";
import type { Pool } from "./lab";
import { duration, said } from "./parts";

export interface History {
  figures: string[];
  /** Targets times seconds in the range. */
  seconds: { leased: number; warm: number };
  from: number;
  to: number;
  /** When sampling began, if nothing older can be known; null if it survives restarts. */
  since: number | null;
  /** A time, then the figures from that time on. */
  points: number[][];
  /** Of the last day. */
  waits: {
    served: number;
    atOnce: number;
    typicalSeconds: number | null;
    slowSeconds: number | null;
  };
}

export type Range = "day" | "month";

const WIDTH = 900;
const HEIGHT = 160;
const REFRESH_MS = 30_000;
const SHOWN_SECONDS_MIN = 3_600;
const STACK: [string, string][] = [
  ["leased", "leased"],
  ["warm", "free"],
  ["starting", "starting"],
  ["failed", "offline"],
];

/** The outline of steps: each value lasts until the next point. */
function steps(points: [number, number][], end: number): string {
  return points
    .map(([x, y], index) => {
      const next = points[index + 1]?.[0] ?? end;
      return `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}L${next.toFixed(1)} ${y.toFixed(1)}`;
    })
    .join("");
}

/** Where the picture begins: with the first figure, if there are none for the whole range. */
function beginning({ from, to, points }: History): number {
  return Math.max(from, Math.min(points[0]?.[0] ?? from, to - SHOWN_SECONDS_MIN));
}

export function drawing(history: History): { areas: [string, string][]; ceiling: string; top: number } {
  const { to, points } = history;
  const from = beginning(history);
  const column = (name: string): number => history.figures.indexOf(name) + 1;
  const total = (point: number[]): number =>
    STACK.reduce((sum, [name]) => sum + (point[column(name)] ?? 0), 0);
  const ceilings = points.map((point) => point[column("max")] ?? 0);
  const top = Math.max(1, ...points.map(total), ...ceilings);
  const x = (time: number): number => (WIDTH * (Math.max(time, from) - from)) / (to - from);
  const y = (value: number): number => HEIGHT - (HEIGHT * value) / (top * 1.1);
  const base = points.map(() => 0);
  const areas = STACK.map(([name, kind]): [string, string] => {
    const lower = [...base];
    points.forEach((point, index) => {
      base[index] = (base[index] ?? 0) + (point[column(name)] ?? 0);
    });
    const over = points.map((point, i): [number, number] => [x(point[0] ?? from), y(base[i] ?? 0)]);
    const under = points.map((point, i): [number, number] => [x(point[0] ?? from), y(lower[i] ?? 0)]);
    const back = steps(under, WIDTH).slice(1).split("L").reverse().join("L");
    return [kind, points.length ? `${steps(over, WIDTH)}L${back}Z` : ""];
  });
  const line = points.map((point, i): [number, number] => [x(point[0] ?? from), y(ceilings[i] ?? 0)]);
  return { areas, ceiling: steps(line, WIDTH), top };
}

/** The history of a pool, kept current. */
export function useHistory(pool: Pool, range: Range): { history: History | null; problem: string } {
  const [history, setHistory] = useState<History | null>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let current = true;
    const load = async (): Promise<void> => {
      try {
        const path = `history/${encodeURIComponent(pool.ns)}/${pool.kind}/${encodeURIComponent(pool.title)}`;
        const found = await get<History>(`${path}?range=${range}`);
        if (!current) return;
        setHistory(found);
        setProblem("");
      } catch (error) {
        if (current) setProblem(said(error));
      }
    };
    void load();
    const timer = setInterval(() => void load(), REFRESH_MS);
    return () => {
      current = false;
      clearInterval(timer);
    };
  }, [pool.ns, pool.name, range]);
  return { history, problem };
}

export function PoolChart(props: {
  pool: Pool;
  history: History | null;
  range: Range;
  onRange: (range: Range) => void;
}): JSX.Element {
  const { pool, history, range } = props;
  const word = range === "day" ? "last day" : "last month";
  const drawn = history?.points.length ? drawing(history) : null;
  return (
    <figure class="chart">
      <figcaption>
        <span>Members, {word}</span>
        <span class="keys" aria-hidden="true">
          <span class="key part-leased" /> leased <span class="key part-free" /> warm{" "}
          <span class="key part-starting" /> starting <span class="key key-line" /> ceiling
        </span>
        <button onClick={() => props.onRange(range === "day" ? "month" : "day")}>
          Show the {range === "day" ? "month" : "day"}
        </button>
      </figcaption>
      {drawn && (
        <span class="chart-top" aria-hidden="true">
          {drawn.top}
        </span>
      )}
      {drawn && (
        <svg
          viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
          preserveAspectRatio="none"
          role="img"
          aria-label={`Members of ${pool.title} over the ${word}, at most ${drawn.top}`}
        >
          {drawn.areas.map(([kind, path]) => (
            <path key={kind} class={`area area-${kind}`} d={path} />
          ))}
          {pool.max > 0 && <path class="ceiling" d={drawn.ceiling} />}
        </svg>
      )}
      <div class="axis" aria-hidden="true">
        <span>{history && `${duration(history.to - beginning(history))} ago`}</span>
        <span>now</span>
      </div>
      {history?.since != null && (
        <p class="quiet">
          Sizes and waits since {new Date(1000 * history.since).toLocaleString()}: this dashboard started
          then, and does not keep them across restarts.
        </p>
      )}
    </figure>
  );
}

/** How long the recent members took to start, oldest first. */
export function BootBars({ pool }: { pool: Pool }): JSX.Element | null {
  if (pool.boots.length < 2) return null;
  const top = Math.max(...pool.boots, 0.1);
  const text = `The last ${pool.boots.length} starts took at most ${top.toFixed(1)} s`;
  return (
    <figure class="boots-figure">
      <div class="boots" role="img" aria-label={text}>
        {pool.boots.map((seconds, index) => (
          <span key={index} style={{ height: `${Math.max(4, (100 * seconds) / top)}%` }} />
        ))}
      </div>
      <figcaption class="quiet" aria-hidden="true">
        {text}
      </figcaption>
    </figure>
  );
}
