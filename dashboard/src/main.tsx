// The frame around the pages: who is signed in, where one is, whether the page is current.
import { type JSX, render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { currentSession, type Session, signInWithLink, signOut } from "./api";
import { lab, useLab } from "./lab";
import { said } from "./parts";
import { Audit } from "./pages/audit";
import { Events } from "./pages/events";
import { Hosts } from "./pages/hosts";
import { Leases } from "./pages/leases";
import { Overview } from "./pages/overview";
import { Pools } from "./pages/pools";
import { Queue } from "./pages/queue";
import { SignIn } from "./pages/sign-in";
import { TargetPage } from "./pages/target";
import { Targets } from "./pages/targets";
import { Timeline } from "./pages/timeline";
import { followLinks, go, href, usePlace } from "./router";
import { applyTheme, chosenTheme, type Theme } from "./theme";
import "@xterm/xterm/css/xterm.css";
import "./style.css";

const PAGES: [string, string][] = [
  ["", "Overview"],
  ["targets", "Targets"],
  ["leases", "Leases"],
  ["queue", "Queue"],
  ["timeline", "Timeline"],
  ["pools", "Pools"],
  ["hosts", "Hosts"],
  ["events", "Events"],
  ["audit", "Audit"],
];

/** What went wrong at an outside issuer, which is removed from the address. */
function problemOfAddress(): string {
  const said = /^#problem=(.*)$/.exec(location.hash)?.[1];
  if (!said) return "";
  history.replaceState(null, "", location.pathname);
  try {
    return decodeURIComponent(said);
  } catch {
    return "The sign-in failed.";
  }
}

function isShown(path: string, session: Session): boolean {
  if (path === "audit") return session.audit;
  return path !== "hosts" || session.providers;
}

/** Signs in with the link of the address, which is removed from it first. */
async function linkedSession(): Promise<Session | null> {
  const secret = /^#link=([\w-]+)$/.exec(location.hash)?.[1];
  if (!secret) return null;
  history.replaceState(null, "", location.pathname);
  return signInWithLink(secret);
}

function App(): JSX.Element {
  const [session, setSession] = useState<Session | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const start = (found: Session): void => {
    setSession(found);
    lab.open();
  };
  const signedOut = (): void => {
    setProblem("");
    setSession(null);
  };
  useEffect(() => {
    const open = async (): Promise<void> => {
      try {
        const refused = problemOfAddress();
        const found = (await linkedSession()) ?? (await currentSession());
        if (found.user === null) setProblem(refused);
        else start(found);
      } catch (error) {
        setSession(null);
        setProblem(said(error));
      }
    };
    // A link that is pasted into an open page changes only what follows the #.
    const linked = (): void => void (location.hash.startsWith("#link=") && open());
    addEventListener("hashchange", linked);
    void open();
    return () => removeEventListener("hashchange", linked);
  }, []);
  useEffect(
    () =>
      lab.listen(() => {
        if (lab.connection !== "signed-out") return;
        setProblem("You are signed out: the session has ended, or the service was restarted.");
        setSession(null);
      }),
    [],
  );
  if (session) return <Frame session={session} onSignOut={signedOut} />;
  if (problem === null) return <main class="sign-in" id="content" aria-busy="true" />;
  return <SignIn key={problem} problem={problem} onSignedIn={start} />;
}

function Frame(props: { session: Session; onSignOut: () => void }): JSX.Element {
  const { parts } = usePlace();
  const title = PAGES.find(([path]) => path === (parts[0] ?? ""))?.[1] ?? "Console";
  useEffect(() => void (document.title = `${parts[2] ?? title} · Bullpen`), [parts.join("/")]);
  useEffect(() => {
    document.addEventListener("click", followLinks);
    document.addEventListener("keydown", onKey);
    return () => {
      document.removeEventListener("click", followLinks);
      document.removeEventListener("keydown", onKey);
    };
  }, []);
  return (
    <div class="frame">
      <a class="skip" href="#content">
        Skip to the page
      </a>
      <header class="top">
        <a class="brand" href={href()}>
          <img src="/dashboard/icon.svg" alt="" width="24" height="24" /> Bullpen
        </a>
        <nav aria-label="Pages">
          {PAGES.filter(([path]) => isShown(path, props.session)).map(([path, name]) => (
            <a
              key={path}
              href={path ? href(path) : href()}
              aria-current={(parts[0] ?? "") === path ? "page" : undefined}
            >
              {name}
            </a>
          ))}
        </nav>
        <Live />
        <ThemeChoice />
        <span class="user" title={`Bullpen ${props.session.version}`}>
          {props.session.user}
        </span>
        <button
          onClick={() => {
            lab.close();
            void signOut().finally(props.onSignOut);
          }}
        >
          Sign out
        </button>
      </header>
      <main id="content" tabIndex={-1}>
        <Page session={props.session} />
      </main>
    </div>
  );
}

function Page({ session }: { session: Session }): JSX.Element {
  const { parts } = usePlace();
  const [page = "", ns = "", name = ""] = parts;
  if (page === "") return <Overview session={session} />;
  if (page === "targets" && name)
    return <TargetPage key={`${ns}/${name}`} ns={ns} name={name} session={session} />;
  if (page === "targets") return <Targets />;
  if (page === "leases") return <Leases session={session} />;
  if (page === "queue") return <Queue />;
  if (page === "timeline") return <Timeline session={session} />;
  if (page === "pools") return <Pools key={`${ns}/${name}`} session={session} ns={ns} name={name} />;
  if (page === "hosts") return <Hosts session={session} />;
  if (page === "events") return <Events />;
  if (page === "audit") return <Audit />;
  if (page === "console" && name) return <LazyConsole key={`${ns}/${name}`} ns={ns} name={name} />;
  return (
    <>
      <h1>There is no such page</h1>
      <p>
        <a href={href()}>Overview</a>
      </p>
    </>
  );
}

/** The terminal is most of the code, and is loaded when it is first used. */
function LazyConsole(props: { ns: string; name: string }): JSX.Element {
  const [loaded, setLoaded] = useState<typeof import("./pages/console") | null>(null);
  useEffect(() => void import("./pages/console").then(setLoaded), []);
  if (!loaded) return <p aria-busy="true">Loading…</p>;
  return <loaded.ConsolePage {...props} />;
}

function Live(): JSX.Element {
  const { connection } = useLab();
  const words = {
    live: "Live",
    connecting: "Connecting…",
    lost: "Connection lost, trying again…",
    "signed-out": "Signed out",
  };
  return (
    <span class={`live live-${connection}`} role="status">
      {words[connection]}
    </span>
  );
}

function ThemeChoice(): JSX.Element {
  const [theme, setTheme] = useState<Theme>(chosenTheme());
  return (
    <select
      aria-label="Colours"
      value={theme}
      onChange={(event) => {
        const chosen = event.currentTarget.value as Theme;
        applyTheme(chosen);
        setTheme(chosen);
      }}
    >
      <option value="system">System</option>
      <option value="light">Light</option>
      <option value="dark">Dark</option>
    </select>
  );
}

/** ``/`` goes to the search of a page, ``g`` and a letter to a page. */
let before = "";
function onKey(event: KeyboardEvent): void {
  const target = event.target as Element;
  if (target.closest("input, textarea, select, .xterm")) return;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    const search = document.querySelector<HTMLInputElement>(".search");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  }
  if (before === "g") {
    const found = PAGES.find(([, name]) => name[0]?.toLowerCase() === event.key);
    if (found) go(found[0] ? href(found[0]) : href());
  }
  before = event.key;
}

const root = document.getElementById("root");
if (root) render(<App />, root);
