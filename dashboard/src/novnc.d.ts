// What is used of noVNC, which comes without types.
declare module "@novnc/novnc" {
  export default class RFB extends EventTarget {
    constructor(target: Element, channel: object, options?: { shared?: boolean });
    scaleViewport: boolean;
    background: string;
    disconnect(): void;
    focus(): void;
    sendCtrlAltDel(): void;
  }
}
