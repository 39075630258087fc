// The console of a leased target, in a terminal; power next to it.
import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { API, write, writeBytes } from "../api";
import { useLab } from "../lab";
import { extend, release } from "../leasing";
import { Action, Badge, Empty, said, TargetLink, useTicking, When } from "../parts";
import { go, href, setQuery, usePlace } from "../router";
import { FlashPanel } from "./flash";

const SCROLLBACK_LINES = 10_000;
const RETRY_MS = 2_000;

type Ability = "serial" | "power" | "flash" | "screen";
type State = "connecting" | "open" | "closed" | "lost";

const WORDS: Record<State, string> = {
  connecting: "Connecting…",
  open: "Connected",
  closed: "Closed",
  lost: "Connection lost, trying again…",
};
const KINDS: Record<State, string> = {
  connecting: "starting",
  open: "free",
  closed: "disabled",
  lost: "offline",
};

/** Sends what is typed in order, one request at a time; what is typed meanwhile goes together. */
class Typing {
  private waiting: string[] = [];
  private sending = false;

  constructor(
    private readonly path: string,
    private readonly failed: (error: unknown) => void,
  ) {}

  add(text: string): void {
    this.waiting.push(text);
    if (!this.sending) void this.send();
  }

  private async send(): Promise<void> {
    this.sending = true;
    while (this.waiting.length) {
      const bytes = new TextEncoder().encode(this.waiting.join(""));
      this.waiting = [];
      try {
        await writeBytes(`${this.path}/input`, bytes);
      } catch (error) {
        this.failed(error);
      }
    }
    this.sending = false;
  }
}

/**
 * Leaves questions of the target about the terminal unanswered. Every page would answer, also
 * when it shows old output again, and late answers are taken for input.
 */
function answerNothing({ parser }: Terminal): void {
  const questions = [
    { final: "n" },
    { prefix: "?", final: "n" },
    { final: "c" },
    { prefix: ">", final: "c" },
    { prefix: "=", final: "c" },
    { intermediates: "$", final: "p" },
    { prefix: "?", intermediates: "$", final: "p" },
    { final: "t" },
  ];
  for (const question of questions) parser.registerCsiHandler(question, () => true);
  parser.registerDcsHandler({ intermediates: "$", final: "q" }, () => true);
  for (const colour of [4, 10, 11, 12]) parser.registerOscHandler(colour, () => true);
}

function bytesOf(text: string): Uint8Array {
  const binary = atob(text);
  return Uint8Array.from(binary, (character) => character.charCodeAt(0));
}

export function ConsolePage(props: { ns: string; name: string }): JSX.Element {
  const { ns, name } = props;
  const lab = useLab();
  useTicking();
  const lease = lab.lease.get(`${ns}/${name}`);
  const ready = lease?.phase === "active";
  const ended = lab.loaded && !lease;
  if (ended)
    return (
      <>
        <h1>Console</h1>
        <Empty>The lease has ended, or was given back.</Empty>
        <p>
          <a href={href("leases")}>Leases</a> · <a href={href()}>Overview</a>
        </p>
      </>
    );
  if (!lease || !ready)
    return (
      <>
        <h1>Waiting for a target</h1>
        <p role="status">{lease?.message || "The lease has not been decided yet."}</p>
        {lease && (
          <p class="quiet">
            <code>{lease.wanted}</code>, asked <When time={lease.created} />
          </p>
        )}
        {lease && <Action run={() => release(lease).then(() => go(href()))}>Give up</Action>}
      </>
    );
  return <OpenConsole key={lease.target} ns={ns} name={name} />;
}

function OpenConsole({ ns, name }: { ns: string; name: string }): JSX.Element {
  const lab = useLab();
  const lease = lab.lease.get(`${ns}/${name}`);
  const { query } = usePlace();
  const box = useRef<HTMLDivElement>(null);
  const [state, setState] = useState<State>("connecting");
  const [message, setMessage] = useState("");
  const [attempt, setAttempt] = useState(0);
  const [has, setHas] = useState<Ability[]>([]);
  const [panel, setPanel] = useState<Ability | "">("");
  const silent = state === "open" && !has.includes("serial");
  const toggle = (wanted: Ability): void => setPanel(panel === wanted ? "" : wanted);
  const path = `consoles/${encodeURIComponent(ns)}/${encodeURIComponent(name)}`;
  const power = (action: string): Promise<unknown> => write("POST", `${path}/power`, { action });
  const powerFirst = useRef(query.get("power") === "on");

  useEffect(() => {
    if (!box.current) return;
    const terminal = new Terminal({
      scrollback: SCROLLBACK_LINES,
      fontFamily: 'ui-monospace, "SFMono-Regular", Menlo, Consolas, monospace',
      fontSize: 14,
      cursorBlink: true,
      screenReaderMode: true,
      theme: { background: "#0d1117", foreground: "#e6edf3" },
    });
    const fit = new FitAddon();
    terminal.loadAddon(fit);
    answerNothing(terminal);
    terminal.open(box.current);
    fit.fit();
    terminal.focus();
    const observer = new ResizeObserver(() => fit.fit());
    observer.observe(box.current);
    const typing = new Typing(path, (error) => setMessage(said(error)));
    terminal.onData((text) => typing.add(text));

    const source = new EventSource(`${API}${path}`);
    source.addEventListener("state", (event) => {
      const found = JSON.parse(event.data) as { state: State; message: string; has: Ability[] };
      setState(found.state);
      if (found.state === "open") {
        setHas(found.has);
        // Without a console, what there is instead is what one came for.
        const instead = (["screen", "flash"] as const).find((each) => found.has.includes(each));
        if (!found.has.includes("serial") && instead) setPanel((shown) => shown || instead);
      }
      setMessage(found.message);
      if (found.state === "closed") source.close();
      if (found.state === "open" && powerFirst.current) {
        powerFirst.current = false;
        setQuery({ power: "" });
        if (!found.has.includes("power")) return;
        power("on").catch((error: unknown) => setMessage(said(error)));
      }
    });
    source.addEventListener("output", (event) => terminal.write(bytesOf(JSON.parse(event.data))));
    let timer: ReturnType<typeof setTimeout> | undefined;
    source.addEventListener("error", () => {
      setState("lost");
      if (source.readyState === EventSource.CLOSED)
        timer = setTimeout(() => setAttempt((count) => count + 1), RETRY_MS);
    });
    return () => {
      clearTimeout(timer);
      source.close();
      observer.disconnect();
      terminal.dispose();
    };
  }, [path, attempt]);

  return (
    <div class="console">
      <div class="console-head">
        <h1>{lease && <TargetLink ns={ns} name={lease.target} />}</h1>
        <span role="status">
          <Badge kind={KINDS[state]}>{WORDS[state]}</Badge>
        </span>
        {(state !== "open" || has.includes("power")) && (
          <>
            <Action run={() => power("on").then(() => undefined)}>Power on</Action>
            <Action run={() => power("off").then(() => undefined)}>Power off</Action>
            <Action run={() => power("cycle").then(() => undefined)}>Power cycle</Action>
          </>
        )}
        {has.includes("flash") && (
          <button aria-expanded={panel === "flash"} onClick={() => toggle("flash")}>
            Flash
          </button>
        )}
        {has.includes("screen") && (
          <button aria-expanded={panel === "screen"} onClick={() => toggle("screen")}>
            Screen
          </button>
        )}
        {state === "closed" && (
          <button onClick={() => setAttempt((count) => count + 1)}>Connect again</button>
        )}
        {lease && (
          <span class="quiet">
            {lease.client}, ends <When time={lease.end} />
          </span>
        )}
        {lease?.claim && <a href={href("leases")}>Claim {lease.claim}</a>}
        {lease && !lease.claim && (
          <Action run={() => extend(lease, 30 * 60)}>Extend by 30 min</Action>
        )}
        {lease && !lease.claim && (
          <Action run={() => release(lease).then(() => go(href()))}>Release</Action>
        )}
      </div>
      {message && (
        <p class="problem" role="alert">
          {message}
        </p>
      )}
      {panel === "flash" && <FlashPanel path={path} power={has.includes("power")} />}
      {panel === "screen" && <LazyScreen path={path} />}
      {silent && (
        <Empty>
          This target has no serial port{has.length ? "" : ", and nothing else that a page can use"}. For
          its other drivers, use <code>j</code> in <code>bullpen shell</code>.
        </Empty>
      )}
      <div class="screen" hidden={silent}>
        <div class="screen-fit" ref={box} />
      </div>
    </div>
  );
}

/** noVNC is loaded when a screen is first shown. */
function LazyScreen(props: { path: string }): JSX.Element {
  const [loaded, setLoaded] = useState<typeof import("./screen") | null>(null);
  useEffect(() => void import("./screen").then(setLoaded), []);
  if (!loaded) return <p aria-busy="true">Loading…</p>;
  return <loaded.ScreenPanel {...props} />;
}
