// The queue: in which order requests are served, why each waits, and what is ahead of it.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { type Claim, type Lab, type Lease, useLab } from "../lab";
import { leasesAndClaims, queue, wantedBy } from "../leasing";
import { duration, Empty, TargetLink, useTicking, When } from "../parts";
import { useMatches } from "./leases";

export function Queue(): JSX.Element {
  const lab = useLab();
  useTicking();
  const waiting = queue();
  const booked = leasesAndClaims().filter((found) => found.phase === "scheduled");
  return (
    <>
      <h1>Queue</h1>
      {!waiting.length && <Empty>Nobody waits.</Empty>}
      <ol class="queue">
        {waiting.map((lease, index) => (
          <Waiting key={lease.name} lease={lease} ahead={waiting.slice(0, index)} lab={lab} />
        ))}
      </ol>
      {booked.length > 0 && <h2>Booked for later</h2>}
      <ul class="plain">
        {booked.map((lease) => (
          <li key={lease.name} class="line">
            <strong>{lease.client}</strong> <code>{wantedBy(lease)}</code>, <When time={lease.begin} />
          </li>
        ))}
      </ul>
    </>
  );
}

function Waiting(props: {
  lease: Lease | Claim;
  ahead: (Lease | Claim)[];
  lab: Lab;
}): JSX.Element {
  const { lease } = props;
  const [open, setOpen] = useState(false);
  const before = props.ahead.filter((other) => other.ns === lease.ns);
  return (
    <li class="card">
      <header>
        <strong>{lease.client}</strong> wants <code>{wantedBy(lease)}</code>
        <span class="quiet">
          asked <When time={lease.created} />
          {"requests" in lease && `, claim ${lease.name}`}
          {lease.priority !== 0 && `, priority ${lease.priority}`}
        </span>
      </header>
      <p>{lease.message || "no decision yet"}</p>
      <button aria-expanded={open} onClick={() => setOpen(!open)}>
        {open ? "Hide what is ahead" : "What is ahead"}
      </button>
      {open && <Ahead lease={lease} before={before} lab={props.lab} />}
    </li>
  );
}

function Ahead(props: {
  lease: Lease | Claim;
  before: (Lease | Claim)[];
  lab: Lab;
}): JSX.Element {
  const { lease, lab } = props;
  // Which devices a claim can get is not a selector; its message says what it lacks.
  const wanted = "requests" in lease ? "" : lease.wanted;
  const selector = wanted.startsWith("name=") ? "" : wanted;
  const { found, problem } = useMatches(selector ? lease.ns : "", selector);
  const named = wanted.startsWith("name=") ? [wanted.slice("name=".length)] : [];
  const names = selector ? (found?.targets ?? []).map((target) => target.name) : named;
  const held = names
    .map((name) => lab.target.get(`${lease.ns}/${name}`))
    .filter((target) => target?.holder !== undefined)
    .sort((a, b) => (a?.until ?? "9").localeCompare(b?.until ?? "9"));
  const soonest = held[0]?.until;
  return (
    <div class="ahead">
      {problem && <p class="problem">{problem}</p>}
      {soonest && (
        <p>
          The next matching target is free in at most{" "}
          {duration((Date.parse(soonest) - lab.now()) / 1000)}, when its lease ends.
        </p>
      )}
      <h3>Requests before this one</h3>
      {!props.before.length && <Empty>None.</Empty>}
      <ul class="plain">
        {props.before.slice(0, 20).map((other) => (
          <li key={other.name}>
            <strong>{other.client}</strong> <code>{wantedBy(other)}</code>, asked{" "}
            <When time={other.created} />
          </li>
        ))}
      </ul>
      {wanted && <h3>Matching targets in use</h3>}
      {wanted && !held.length && <Empty>None.</Empty>}
      <ul class="plain">
        {held.slice(0, 20).map(
          (target) =>
            target && (
              <li key={target.name}>
                <TargetLink ns={target.ns} name={target.name} /> {target.holder}, ends{" "}
                <When time={target.until} />
              </li>
            ),
        )}
      </ul>
    </div>
  );
}
