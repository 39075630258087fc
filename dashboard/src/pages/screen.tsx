// The screen of a target, by VNC over requests of the dashboard instead of a WebSocket.
/*! noVNC 1.7.0, unchanged, under MPL-2.0: source at https://github.com/novnc/noVNC */
import RFB from "@novnc/novnc";
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { API, Refused, writeBytes } from "../api";
import { Badge, Field, said } from "../parts";

/** Looks to noVNC like the data channel of WebRTC. */
class Channel {
  binaryType = "arraybuffer";
  readonly protocol = "";
  readyState: "connecting" | "open" | "closed" = "connecting";
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: ArrayBuffer }) => void) | null = null;
  onclose: ((event: { code: number; reason: string }) => void) | null = null;
  onerror: ((event: unknown) => void) | null = null;
  private readonly stop = new AbortController();
  private waiting: Uint8Array<ArrayBuffer>[] = [];
  private sending = false;
  private input = "";

  constructor(
    private readonly path: string,
    private readonly failed: (error: unknown) => void,
  ) {
    void this.receive();
  }

  private async receive(): Promise<void> {
    try {
      const answer = await fetch(`${API}${this.path}/screen`, {
        credentials: "same-origin",
        signal: this.stop.signal,
      });
      if (!answer.ok || !answer.body) {
        const { message } = (await answer.json()) as { message?: string };
        throw new Refused(answer.status, message ?? `the service answered ${answer.status}`);
      }
      this.input = `${this.path}/screen/${answer.headers.get("x-bullpen-screen") ?? ""}`;
      this.readyState = "open";
      this.onopen?.();
      const reader = answer.body.getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        this.onmessage?.({ data: value.slice().buffer });
      }
    } catch (error) {
      if (!this.stop.signal.aborted) this.failed(error);
    }
    this.ended();
  }

  /** noVNC uses its buffer again, so the bytes are copied. */
  send(data: Uint8Array | ArrayBuffer): void {
    this.waiting.push(new Uint8Array(data).slice());
    if (!this.sending) void this.flush();
  }

  private async flush(): Promise<void> {
    this.sending = true;
    while (this.waiting.length && this.readyState === "open") {
      const pieces = this.waiting;
      this.waiting = [];
      try {
        const together = await new Blob(pieces).arrayBuffer();
        await writeBytes(this.input, new Uint8Array(together));
      } catch (error) {
        this.failed(error);
        this.close();
      }
    }
    this.sending = false;
  }

  close(): void {
    this.stop.abort();
    this.ended();
  }

  private ended(): void {
    if (this.readyState === "closed") return;
    this.readyState = "closed";
    this.onclose?.({ code: 1000, reason: "" });
  }
}

type State = "connecting" | "open" | "closed";
const WORDS = { connecting: "Connecting…", open: "Connected", closed: "Closed" };
const KINDS = { connecting: "starting", open: "free", closed: "disabled" };

export function ScreenPanel({ path }: { path: string }): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const vnc = useRef<RFB | null>(null);
  const [state, setState] = useState<State>("connecting");
  const [problem, setProblem] = useState("");
  const [attempt, setAttempt] = useState(0);
  const [asked, setAsked] = useState(false);
  useEffect(() => {
    if (!box.current) return;
    setState("connecting");
    setProblem("");
    const failed = (error: unknown): void => setProblem(said(error));
    const screen = new RFB(box.current, new Channel(path, failed), { shared: true });
    screen.scaleViewport = true;
    screen.background = "#0d1117";
    screen.addEventListener("connect", () => setState("open"));
    screen.addEventListener("disconnect", () => {
      setAsked(false);
      setState("closed");
    });
    screen.addEventListener("credentialsrequired", ({ detail }) => {
      if (detail.types.every((type) => type === "password")) {
        setAsked(true);
        return;
      }
      setProblem("The screen asks for more than a password, which is not supported.");
      screen.disconnect();
    });
    screen.addEventListener("securityfailure", ({ detail }) =>
      setProblem(`The screen refused the password${detail.reason ? `: ${detail.reason}` : ""}.`),
    );
    vnc.current = screen;
    return () => {
      vnc.current = null;
      screen.disconnect();
    };
  }, [path, attempt]);
  return (
    <section class="vnc" aria-label="Screen">
      <div class="console-head">
        <h2>Screen</h2>
        <span role="status">
          <Badge kind={KINDS[state]}>{WORDS[state]}</Badge>
        </span>
        <button disabled={state !== "open"} onClick={() => vnc.current?.sendCtrlAltDel()}>
          Ctrl+Alt+Del
        </button>
        {state === "closed" && (
          <button onClick={() => setAttempt((count) => count + 1)}>Connect again</button>
        )}
      </div>
      {problem && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      {asked && (
        <Password
          onGiven={(password) => {
            setAsked(false);
            vnc.current?.sendCredentials({ password });
          }}
        />
      )}
      <div class="vnc-box" ref={box} />
    </section>
  );
}

/** Asks for the password of a VNC server, which is sent to it and kept nowhere. */
function Password({ onGiven }: { onGiven: (password: string) => void }): JSX.Element {
  const [password, setPassword] = useState("");
  return (
    <form
      class="form"
      onSubmit={(event) => {
        event.preventDefault();
        onGiven(password);
      }}
    >
      <Field label="Password of the screen" hint="VNC uses its first eight characters">
        {(id) => (
          <input
            id={id}
            type="password"
            autocomplete="off"
            value={password}
            onInput={(event) => setPassword(event.currentTarget.value)}
          />
        )}
      </Field>
      <div>
        <button class="primary">Connect</button>
      </div>
    </form>
  );
}
