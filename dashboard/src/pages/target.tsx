// One target: what it offers, who has it, who had it.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { get, type Session, write } from "../api";
import { type Condition, type Lease, useLab } from "../lab";
import { openConsole } from "../leasing";
import { Action, Badge, duration, Empty, Labels, said, State, useTicking, When } from "../parts";
import { href } from "../router";

interface Detail {
  drivers: { name: string; client: string; depth: number }[];
  conditions: Condition[];
  enabled: boolean;
  lastSeen: string | null;
  status: string;
  history: Lease[];
}

export function TargetPage(props: { ns: string; name: string; session: Session }): JSX.Element {
  const lab = useLab();
  useTicking();
  const { ns, name } = props;
  const row = lab.target.get(`${ns}/${name}`);
  const [detail, setDetail] = useState<Detail | null>(null);
  const [problem, setProblem] = useState("");
  const state = `${row?.state} ${row?.lease}`;
  const load = async (): Promise<void> => {
    try {
      setDetail(await get<Detail>(`targets/${encodeURIComponent(ns)}/${encodeURIComponent(name)}`));
      setProblem("");
    } catch (error) {
      setProblem(said(error));
    }
  };
  useEffect(() => void load(), [ns, name, state]);
  const client = props.session.clients.find((found) => found.ns === ns);
  const path = `objects/apis/jumpstarter.dev/v1alpha1/namespaces/${ns}/exporters/${name}`;
  return (
    <>
      <p class="crumbs">
        <a href={href("targets")}>Targets</a> /
      </p>
      <h1>
        {name} {row && <State state={row.state} />}
      </h1>
      {!row && lab.loaded && <Empty>There is no such target now; pools replace theirs after use.</Empty>}
      {problem && row && (
        <p class="problem" role="alert">
          {problem}
        </p>
      )}
      {row && (
        <>
          <p>
            <Labels labels={row.labels} />
          </p>
          {row.message && <p>{row.message}</p>}
          {row.holder && (
            <p>
              <strong>{row.holder}</strong> has it; the lease ends <When time={row.until} />.
            </p>
          )}
          <div class="card-actions">
            {row.state === "free" && client && (
              <Action
                class="primary"
                run={() => openConsole({ client, exporter: name, duration: "30m" })}
              >
                Open a console
              </Action>
            )}
            {row.lease && (
              <a class="button" href={href("console", ns, row.lease)}>
                Console
              </a>
            )}
            {detail && (
              <Action
                {...(detail.enabled ? { confirm: "Take it out of service for new leases?" } : {})}
                run={async () => {
                  await write("PATCH", path, { spec: { enabled: !detail.enabled } });
                  await load();
                }}
              >
                {detail.enabled ? "Disable" : "Enable"}
              </Action>
            )}
          </div>
        </>
      )}
      {detail && row && <DetailSections detail={detail} />}
      {row && <Log key={`${ns}/${name}`} ns={ns} name={name} state={state} />}
    </>
  );
}

/** The end of the exporter's log, read again when the state of the target changes. */
function Log({ ns, name, state }: { ns: string; name: string; state: string }): JSX.Element {
  const [text, setText] = useState<string | null>(null);
  const [problem, setProblem] = useState("");
  const box = useRef<HTMLPreElement>(null);
  const load = async (): Promise<void> => {
    try {
      const path = `targets/${encodeURIComponent(ns)}/${encodeURIComponent(name)}/log`;
      setText((await get<{ text: string }>(path)).text);
      setProblem("");
    } catch (error) {
      setProblem(said(error));
    }
  };
  useEffect(() => void load(), [state]);
  useEffect(() => box.current?.scrollTo(0, box.current.scrollHeight), [text]);
  return (
    <section aria-labelledby="log">
      <h2 id="log">Log of its exporter</h2>
      {problem && <Empty>{problem}</Empty>}
      {!problem && text !== null && (
        <>
          <pre class="log" ref={box} tabIndex={0} aria-labelledby="log">
            {text}
          </pre>
          <Action run={load}>Refresh</Action>
        </>
      )}
    </section>
  );
}

function DetailSections({ detail }: { detail: Detail }): JSX.Element {
  return (
    <div class="columns">
      <section aria-labelledby="drivers">
        <h2 id="drivers">Drivers</h2>
        {!detail.drivers.length && <Empty>It has reported none yet.</Empty>}
        <ul class="plain">
          {detail.drivers.map((driver, index) => (
            <li key={index} style={{ paddingLeft: `${driver.depth * 1.25}rem` }}>
              <strong>{driver.name || "(root)"}</strong> <span class="quiet">{driver.client}</span>
            </li>
          ))}
        </ul>
        <h2>Conditions</h2>
        <ul class="plain">
          {detail.conditions.map((found) => (
            <li key={found.type} class="line">
              <Badge kind="kind">{found.type}</Badge> {found.status} {found.reason}{" "}
              <span class="quiet">
                since <When time={found.since} />
              </span>
              {found.message && <div class="quiet">{found.message}</div>}
            </li>
          ))}
        </ul>
        <p class="quiet">
          Last heard from <When time={detail.lastSeen} />
        </p>
      </section>
      <section aria-labelledby="history">
        <h2 id="history">Former leases</h2>
        {!detail.history.length && <Empty>None are kept.</Empty>}
        <ul class="plain">
          {detail.history.map((lease) => (
            <li key={lease.name} class="line">
              <strong>{lease.client}</strong> <When time={lease.begin} />
              {lease.begin && lease.end && (
                <> for {duration((Date.parse(lease.end) - Date.parse(lease.begin)) / 1000)}</>
              )}
              <div class="quiet">{lease.message || lease.reason}</div>
            </li>
          ))}
        </ul>
      </section>
    </div>
  );
}
