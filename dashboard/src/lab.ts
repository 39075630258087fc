// The lab as the service streams it: one snapshot, then changes.
// The browser reconnects by itself and says which event it saw last, so nothing is missed.
import { useEffect, useReducer } from "preact/hooks";
import { API, currentSession } from "./api";

export type TargetState = "free" | "leased" | "busy" | "starting" | "disabled" | "offline";

export interface Target {
  ns: string;
  name: string;
  state: TargetState;
  labels: Record<string, string>;
  pool?: string;
  host?: string;
  lease?: string;
  holder?: string;
  until?: string | null;
  /** It does not come back after a lease. */
  stuck?: boolean;
  message?: string;
}

export interface Lease {
  ns: string;
  name: string;
  client: string;
  phase: "scheduled" | "waiting" | "active" | "ended";
  wanted: string;
  target: string;
  created: string;
  begin: string | null;
  end: string | null;
  seconds: number | null;
  priority: number;
  reason: string;
  message: string;
  /** The claim it belongs to, which is what can be released. */
  claim?: string;
}

export interface Claim {
  ns: string;
  name: string;
  client: string;
  phase: "scheduled" | "waiting" | "active";
  /** What is asked for, such as ``dut: 2 board or qemu``. */
  requests: string[];
  constraints: string[];
  members: { request: string; alternative: string; device: string; lease: string }[];
  created: string;
  begin: string | null;
  seconds: number | null;
  priority: number;
  reason: string;
  message: string;
  warning: string;
}

export interface Condition {
  type: string;
  status: string;
  reason: string;
  message: string;
  since: string | null;
}

export interface Decision {
  time: string;
  action: string;
  name: string;
  count: number;
  rule: string;
  message: string;
}

export interface Pool {
  ns: string;
  name: string;
  title: string;
  kind: "ExporterSet" | "VirtualTargetPool";
  class: string;
  paused: boolean;
  min: number;
  max: number;
  wantedWarm: number;
  replicas: number;
  warm: number;
  starting: number;
  failed: number;
  leased: number;
  bootSeconds: number | null;
  slowBootSeconds: number | null;
  /** The recent starts in seconds, oldest first. */
  boots: number[];
  labels: Record<string, string>;
  conditions: Condition[];
  decisions: Decision[];
}

export interface Host {
  name: string;
  address: string;
  slots: number;
  used: number;
  drain: boolean;
  answering: boolean;
  error: string;
  /** In percent; null if the host does not say. */
  cpu: number | null;
  memory: number | null;
}

export interface Provider {
  ns: string;
  name: string;
  provisioner: string;
  endpoint: string;
  deleting: boolean;
  instances: number;
  orphans: number;
  quota: { instances: number; used: number } | null;
  maxInstances: number;
  /** Decimal numbers, empty if unknown or without limit. */
  hourlyCost: string;
  maxHourlyCost: string;
  maxHours: number;
  error: string;
  conditions: Condition[];
  hosts: Host[];
}

interface Rows {
  target?: Target[];
  lease?: Lease[];
  claim?: Claim[];
  pool?: Pool[];
  provider?: Provider[];
}

type Kind = keyof Rows;
const KINDS = ["target", "lease", "claim", "pool", "provider"] as const satisfies Kind[];
export type Connection = "connecting" | "live" | "lost" | "signed-out";

const RETRY_MS = 2_000;

export class Lab {
  readonly target = new Map<string, Target>();
  readonly lease = new Map<string, Lease>();
  readonly claim = new Map<string, Claim>();
  readonly pool = new Map<string, Pool>();
  readonly provider = new Map<string, Provider>();
  connection: Connection = "connecting";
  loaded = false;
  version = 0;
  /** Clock of the service minus clock of the browser, in milliseconds. */
  private ahead = 0;
  private source: EventSource | null = null;
  private readonly listeners = new Set<() => void>();
  private scheduled = false;
  private coming: Rows[] = [];

  now(): number {
    return Date.now() + this.ahead;
  }

  open(): void {
    this.close();
    const source = new EventSource(`${API}stream`);
    this.source = source;
    source.addEventListener("open", () => this.became("live"));
    source.addEventListener("snapshot", (event) => this.snapshot(JSON.parse(event.data)));
    source.addEventListener("changes", (event) => this.changes(JSON.parse(event.data)));
    source.addEventListener("signed-out", () => {
      this.close();
      this.became("signed-out");
    });
    source.addEventListener("error", () => {
      if (this.source !== source) return;
      this.became("lost");
      // The browser gives up after an answer that is no stream, such as 401 or 503.
      if (source.readyState === EventSource.CLOSED) setTimeout(() => this.retry(source), RETRY_MS);
    });
  }

  close(): void {
    this.source?.close();
    this.source = null;
  }

  private retry(source: EventSource): void {
    if (this.source !== source) return;
    currentSession().then(
      (session) => {
        if (session) return this.open();
        this.close();
        this.became("signed-out");
      },
      () => setTimeout(() => this.retry(source), RETRY_MS),
    );
  }

  /** A snapshot comes in parts; the old rows are shown until the last one is there. */
  private snapshot(data: { now: number; rows: Rows; first: boolean; last: boolean }): void {
    if (data.first) this.coming = [];
    this.coming.push(data.rows);
    if (!data.last) return;
    for (const kind of KINDS) this[kind].clear();
    for (const rows of this.coming) this.put({ now: data.now, rows });
    this.coming = [];
    this.loaded = true;
  }

  private changes(data: { now: number; rows: Rows; gone: [Kind, string, string][] }): void {
    for (const [kind, ns, name] of data.gone) this[kind].delete(`${ns}/${name}`);
    this.put(data);
  }

  private put(data: { now: number; rows: Rows }): void {
    this.ahead = data.now * 1000 - Date.now();
    for (const kind of KINDS) {
      const known = this[kind] as Map<string, { ns: string; name: string }>;
      for (const row of data.rows[kind] ?? []) known.set(`${row.ns}/${row.name}`, row);
    }
    this.became("live");
  }

  private became(connection: Connection): void {
    this.connection = connection;
    this.version += 1;
    if (this.scheduled) return;
    this.scheduled = true;
    // A hidden page draws no frames, and must still notice changes.
    setTimeout(() => {
      this.scheduled = false;
      for (const listener of [...this.listeners]) listener();
    }, 16);
  }

  listen(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Resolves as soon as ``found`` returns something. */
  until<T>(found: () => T | undefined): Promise<T> {
    return new Promise((resolve) => {
      const look = (): boolean => {
        const value = found();
        if (value !== undefined) resolve(value);
        return value !== undefined;
      };
      if (look()) return;
      const stop = this.listen(() => {
        if (look()) stop();
      });
    });
  }
}

export const lab = new Lab();

/** Draws a component again whenever the lab changes. */
export function useLab(): Lab {
  const [, redraw] = useReducer((count: number) => count + 1, 0);
  useEffect(() => lab.listen(() => redraw(undefined)), []);
  return lab;
}
